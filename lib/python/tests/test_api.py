"""Text, tokens, errors, arguments, figures."""

import unittest
from array import array

from support import Case, TEXT, TINY, kvcsa


class Text(Case):
    def test_tokens_and_back(self):
        for text in (TEXT, "", "\u00e9\u4e2d\U0001f600", b"\xff\x00raw", "a\0b"):
            ids = self.model.tokenize(text)
            self.assertIsInstance(ids, array)
            self.assertEqual(self.model.detokenize(ids), text.encode() if isinstance(text, str) else text)
            self.assertEqual(b"".join(map(self.model.token_text, ids)), self.model.detokenize(ids))
        self.assertEqual(self.model.text(self.model.tokenize(b"\xff")), "\ufffd")
        for bad in (-1, self.model.info.vocab_tokens):
            with self.assertRaises(kvcsa.ArgError):
                self.model.token_text(bad)

    def test_special_tokens(self):
        name = self.model.token_text(self.model.info.eos_token).decode()
        plain, special = self.model.tokenize(name), self.model.tokenize(name, special=True)
        self.assertGreater(len(plain), 1)
        self.assertEqual(list(special), [self.model.info.eos_token])

    def test_chat(self):
        try:
            ids = self.model.chat_prompt([("system", "Be brief."), {"role": "user", "content": "Who are you?"}])
        except kvcsa.UnsupportedError as error:  # a tokenizer without the tokens of the format
            self.assertIn("token", str(error))
            return
        text = self.model.text(ids)
        self.assertLess(text.index("Be brief."), text.index("Who are you?"))
        with self.assertRaises(kvcsa.ArgError):
            self.model.chat_prompt([("nobody", "x")])
        with self.assertRaises(kvcsa.ArgError):
            self.model.chat_prompt([("user", "a\0b")])

    def test_stream_of_text(self):
        text = "caf\u00e9 \u4e2d"
        with self.model.text_stream() as out:
            parts = [out.push(token) for token in self.model.tokenize(text)] + [out.finish()]
        self.assertEqual("".join(parts), text)
        with self.model.text_stream(["void", "dark"]) as out:
            shown = "".join(out.push(token) for token in self.model.tokenize(TEXT)) + out.finish()
            self.assertEqual((shown, out.stopped), (TEXT[: TEXT.index("void")], 0))
        with self.assertRaises(kvcsa.ArgError):
            self.model.text_stream([""])
        with self.assertRaises(TypeError):
            self.model.text_stream("void")

    def test_generating(self):
        session = self.session()
        want = list(self.session().generate(20))
        some = session.generate(20)
        got = [next(some), next(some), next(some)]
        some.close()
        self.assertEqual((got, len(session), session.stats().n_queued), (want[:3], len(self.model.tokenize(TEXT)) + 3, 0))
        self.assertEqual(list(session.generate(17)), want[3:])
        text = self.model.text(want)
        word = text.split()[2]
        stopped = "".join(self.session().stream(20, stops=[word]))
        self.assertEqual(stopped, text[: text.index(word)])

    def test_sampling(self):
        session = self.session()
        hot = kvcsa.Sampler(seed=5, temperature=1.5, top_k=50)
        draws = {session.sample(kvcsa.Sampler(seed=seed, temperature=1.5)) for seed in range(40)}
        self.assertGreater(len(draws), 3)
        self.assertEqual(session.sample(hot), hot.sample(session.logits(), len(session)))
        self.assertEqual(list(session.fork().generate(10, hot)), list(session.fork().generate(10, hot)))
        for bad in (kvcsa.Sampler(temperature=-1.0), kvcsa.Sampler(top_p=float("nan"))):
            with self.assertRaises(kvcsa.ArgError):
                session.sample(bad)
        with self.assertRaises(kvcsa.ArgError):
            hot.sample([1.0, float("nan")], 0)


class Arguments(Case):
    def test_token_lists_of_every_kind(self):
        tokens = self.model.tokenize(TEXT)
        want = self.session().logits()
        read_only = memoryview(tokens.tobytes()).cast("i")
        for given in (tokens, list(tokens), tuple(tokens), iter(tokens), array("q", tokens), memoryview(tokens), read_only):
            session = self.session("")
            self.assertEqual(session.append(given), len(tokens))
            session.step()
            self.assertEqual(session.logits(), want)
        for bad, error in (("text", TypeError), (b"bytes", TypeError), ([1, 2**40], kvcsa.ArgError), ([-5], kvcsa.ArgError),
                           ([self.model.info.vocab_tokens], kvcsa.ArgError), (3, TypeError), (["x"], TypeError)):
            with self.assertRaises(error):
                session.append(bad)
        self.assertEqual(session.stats().n_queued, 0)

    def test_paths(self):
        with self.assertRaises(kvcsa.IoError) as caught:
            kvcsa.Model("/nowhere")
        self.assertEqual((caught.exception.errno, caught.exception.status), (2, kvcsa.Status.ERR_IO))
        self.assertIsInstance(caught.exception, OSError)
        self.assertIn("/nowhere", str(caught.exception))
        with self.assertRaises(kvcsa.ArgError):
            kvcsa.Model(TINY + "\0x")
        with self.assertRaises(kvcsa.ArgError):
            kvcsa.Pool(backend_dir="relative")
        with self.assertRaises(kvcsa.ArgError):
            kvcsa.Model(TINY, plan_only=True, plan="{")

    def test_errors_have_their_class(self):
        self.assertEqual({status for status in kvcsa.Status} - {kvcsa.Status.OK}, set(kvcsa.errors.BY_STATUS))
        session = self.session("")
        with self.assertRaises(kvcsa.LimitError):
            session.append([5] * (self.model.info.max_context_tokens + 1))
        with kvcsa.Pool(1000, n_threads=1) as small, small.session(self.model) as crowded:
            with self.assertRaisesRegex(kvcsa.FullError, r"KVCSA_ERR_FULL"):
                crowded.append([5] * 1000)
        with self.assertRaises(kvcsa.UnsupportedError):
            kvcsa.Pool(flags=1 << 30)
        with self.assertRaises(kvcsa.UnsupportedError):
            self.pool.session(self.model, kvcsa.SessionParams(mode=99))
        with self.assertRaises(kvcsa.BackendError):
            kvcsa.Pool(backend=kvcsa.Backend.CUDA, backend_dir="/nowhere")
        self.assertTrue(issubclass(kvcsa.ArgError, ValueError) and issubclass(kvcsa.NoMemError, MemoryError))
        later = kvcsa.errors.from_record(kvcsa._abi.kvcsa_error(-99, 0, b"of tomorrow"))
        self.assertEqual((later.status, str(later)), (-99, "of tomorrow (KVCSA_-99)"))

    def test_mismatch(self):
        data = self.session().to_bytes()
        with kvcsa.Model(TINY, plan={"entry_format": "bf16"}) as other, self.pool.session(other) as session:
            with self.assertRaises(kvcsa.MismatchError):
                session.from_bytes(data)


class Figures(Case):
    def test_of_pool_and_session(self):
        session = self.session()
        stats, work = session.stats(), session.layer_work(1)
        self.assertEqual(stats.n_tokens, len(session))
        self.assertEqual(len(stats.total), 4)
        self.assertEqual(sum(group.n_rows for group in stats.total), self.model.info.n_layers * len(session))
        self.assertEqual((work[0].n_rows, work[1].n_rows), (len(session), len(session)))
        self.assertEqual(self.pool.stats().n_sessions, 1)
        self.assertGreaterEqual(self.pool.trim(), 0)
        self.pool.resize(1 << 24)
        self.assertEqual(self.pool.stats().budget_bytes, 1 << 24)
        with self.assertRaises(kvcsa.FullError):
            self.pool.resize(10)
        self.pool.check()
        self.assertEqual(self.pool.cpu().numerics, kvcsa.cpu_info().numerics)
        self.assertEqual(kvcsa.backend_info().name, self.pool.backend().name)
        self.assertEqual(kvcsa.version(), kvcsa.__version__)

    def test_erase_sync_publish(self):
        session = self.session("", flags=kvcsa.SessionFlags.PRIVATE)
        session.append(self.long_tokens(400))
        session.step()
        self.assertEqual(self.pool.prefix_match(self.model, self.long_tokens(400)), 0)
        self.assertEqual(session.publish(), 384)
        info = session.sync(self.long_tokens(300))
        self.assertEqual((info.n_kept, info.n_kept + info.n_adopted + info.n_compute), (300, 300))
        session.step()
        session.erase(secure=True)
        self.assertEqual((len(session), bool(session)), (0, True))

    def test_mass_and_hide(self):
        session = self.session("", flags=kvcsa.SessionFlags.TRACK_MASS)
        session.append(self.long_tokens(300))
        session.step()
        mass = session.mass(reset=True)
        self.assertEqual(len(mass), -(-300 // self.model.info.span_tokens))
        self.assertGreater(sum(mass), 0)
        self.assertEqual(sum(session.mass()), 0)
        session.hide(0, 160)
        session.append(self.long_tokens(20))
        session.step()
        after = session.mass()
        self.assertEqual(sum(after[:10]), 0)
        self.assertGreater(sum(after[10:]), 0)
        session.hide(0, hidden=False)
        with self.assertRaises(kvcsa.ArgError):
            session.hide(1, 5)
        with self.assertRaises(kvcsa.ArgError):
            self.session().mass()

    def test_rows_of_logits_side_by_side(self):
        with kvcsa.Compare(allocator=self.memory) as compare:
            compare.begin()
            compare.add(0, [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 2)
            compare.add(1, [1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
            compare.add_greedy([1, 2, 3], [1, 2, 4])
            result = compare.result()
            self.assertEqual((result.n_rows, result.n_equal_rows, result.n_flips, list(compare.greedy())), (2, 1, 1, [2]))
            self.assertEqual([row.equal for row in compare.rows()], [1, 0])
            with self.assertRaises(kvcsa.ArgError):
                compare.add(2, [1.0], [1.0, 2.0])


if __name__ == "__main__":
    unittest.main()
