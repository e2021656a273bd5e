"""The five-minute tour of docs/guide-python.md: open, share a prefix, fork, save, restore, measure."""

import io
import tempfile
import unittest
from pathlib import Path

from support import Case, TEXT, TINY, kvcsa


class Tour(Case):
    def test_open_ask_stream(self):
        session = self.session()
        text = "".join(session.stream(24))
        again = self.session()
        self.assertEqual(text, "".join(again.stream(24)))
        self.assertEqual(text, self.model.text(session.tokens(len(self.model.tokenize(TEXT)))))
        self.assertEqual(len(session), len(self.model.tokenize(TEXT)) + 24)
        self.assertEqual(session.stats().n_queued, 0)

    def test_share_a_prefix(self):
        tokens = self.long_tokens(700)
        first = self.session("")
        first.append(tokens)
        first.step()
        want = first.logits()
        second = self.session("")
        second.append(tokens)
        second.step()
        reuse = second.reuse()
        self.assertGreaterEqual(reuse.n_adopted, 512)
        self.assertEqual(reuse.n_adopted + reuse.n_compute, 700)
        self.assertEqual(want, second.logits())
        self.assertGreaterEqual(self.pool.prefix_match(self.model, tokens), 512)
        pinned = self.pool.prefix_pin(self.model, tokens)
        self.assertGreaterEqual(pinned, 512)
        self.assertGreater(self.pool.stats().n_pinned_blocks, 0)
        self.pool.prefix_unpin(self.model, tokens[:pinned])
        self.assertEqual(self.pool.stats().n_pinned_blocks, 0)
        with self.assertRaises(kvcsa.ArgError):
            self.pool.prefix_unpin(self.model, tokens[:pinned])
        first.close()
        second.close()
        self.assertGreater(self.pool.prefix_forget(self.model), 0)
        self.assertEqual(self.pool.prefix_match(self.model, tokens), 0)
        self.assertEqual(self.pool.stats().used_bytes, 0)

    def test_fork_and_rewind(self):
        trunk = self.session()
        length, copied = len(trunk), self.pool.stats().n_copied_blocks
        with trunk.fork() as branch:
            self.assertEqual(self.pool.stats().n_copied_blocks, copied)
            branch.append(self.model.tokenize("And God said, "))
            said = list(branch.generate(12))
            self.assertEqual(len(trunk), length)
            end = len(branch)
            trunk.append(self.model.tokenize("But the sea "))
            other = list(trunk.generate(12))
            self.assertNotEqual(said, other)
            trunk.rewind(length)
            trunk.append(self.model.tokenize("And God said, "))
            self.assertEqual(list(trunk.generate(12)), said)
            self.assertEqual(trunk.tokens(), branch.tokens())
            self.assertEqual(len(trunk), end)
            self.assertEqual(trunk.common_prefix(branch.tokens()), end)
        early = trunk.fork(10)
        self.addCleanup(early.close)
        self.assertEqual((len(early), early.tokens()), (10, trunk.tokens()[:10]))

    def test_save_and_restore(self):
        session = self.session()
        tokens = session.tokens()
        want = session.logits()
        flags = kvcsa.SnapshotFlags.WINDOW | kvcsa.SnapshotFlags.LOGITS
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "session.kvcsa"
            info = session.save(file, flags=flags)
            self.assertEqual((info.n_tokens, info.total_bytes), (len(tokens), file.stat().st_size))
            self.assertEqual(session.snapshot_size(flags=flags), file.stat().st_size)
            self.assertEqual(kvcsa.inspect_snapshot(file).n_tokens, len(tokens))
            with kvcsa.Pool(n_threads=1) as other, other.session(self.model) as restored:
                restored.load(file)
                self.assertEqual((restored.tokens(), restored.logits()), (tokens, want))
                self.assertEqual(list(restored.generate(8)), list(session.fork().generate(8)))
            session.save(folder, name="turn-1")
            self.assertEqual(kvcsa.inspect_snapshot(folder, name="turn-1").n_tokens, len(tokens))
            kvcsa.remove_snapshot(folder, name="turn-1")
            with self.assertRaises(kvcsa.IoError) as caught:
                kvcsa.inspect_snapshot(folder, name="turn-1")
            self.assertEqual(caught.exception.errno, 2)
        data = session.to_bytes(flags=flags)
        self.assertEqual(len(data), info.total_bytes)
        for source in (io.BytesIO(data), OnlyRead(data)):
            restored = self.session("")
            restored.read(source)
            self.assertEqual((restored.tokens(), restored.logits()), (tokens, want))
        spoiled = bytearray(data)
        spoiled[len(spoiled) // 2] ^= 1
        with self.assertRaises(kvcsa.Error) as caught:
            restored.from_bytes(bytes(spoiled))
        self.assertIn(caught.exception.status, (kvcsa.Status.ERR_CORRUPT, kvcsa.Status.ERR_FORMAT))
        self.assertEqual(restored.tokens(), tokens)

    def test_measure(self):
        tokens = self.long_tokens(512)
        exact = kvcsa.Setting(self.model, self.pool)
        settings = [kvcsa.Setting(self.model, self.pool, append_tokens=64),
                    kvcsa.Setting(self.model, self.pool, kvcsa.SessionParams(flags=kvcsa.SessionFlags.WINDOW_ONLY)),
                    kvcsa.Setting(self.model, self.pool, keep_first_tokens=16, keep_last_tokens=64),
                    kvcsa.Setting(self.model, self.pool, hidden=[(16, 256)])]
        asked = []
        found = kvcsa.compare_text(exact, settings, tokens, progress=lambda done, n: asked.append((done, n)))
        same, window, kept, hidden = [compare.result() for compare in found]
        self.assertTrue(asked)
        self.assertEqual((same.n_rows, same.n_equal_rows, same.kl_max), (512, 512, 0.0))
        for worse in (window, kept, hidden):
            self.assertGreater(worse.kl_mean, 0.0)
            self.assertLess(worse.n_equal_rows, 512)
        rows = found[1].rows(500)
        self.assertEqual([row.position for row in rows], list(range(500, 512)))
        compares, texts = kvcsa.compare_greedy(exact, settings[:2], tokens[:64], 12)
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(list(compares[0].greedy()), [12])
        self.assertEqual(compares[1].result().n_greedy, 1)
        for compare in (*found, *compares):
            compare.close()

    def test_cost(self):
        cost = self.model.cost(1000)
        self.assertAlmostEqual(cost.rate, 79.5)
        self.assertEqual([row.layer for row in self.model.plan()], list(range(self.model.info.n_layers)))
        one = self.model.estimate(1000)
        many = self.model.estimate(1000, 10, 896, kvcsa.SessionParams(window_slack_tokens=64))
        self.assertLess(many.block_bytes, 10 * one.block_bytes)
        plan = kvcsa.Model(TINY, plan_only=True, plan={"entry_format": "bf16"})
        self.assertGreater(plan.cost(1000).rate, cost.rate)
        serving = plan.serving_cost(kvcsa.ServingParams(n_tokens=1000, n_users=8, device_bytes=1 << 30))
        self.assertGreater(serving.max_users, 8)
        resume = plan.resume_cost(kvcsa.ResumeParams(n_tokens=1000, tier_bytes_per_second=1e9, flops_per_token=1e7,
                                                     flops_per_second=1e10))
        self.assertGreater(resume.ratio, 1)
        agent = kvcsa.agent_cost(kvcsa.AgentParams(n_calls=50, context_tokens=1000, tool_tokens=100, generated_tokens=10,
                                                   hit_price=0.1, miss_price=1.0, output_price=2.0))
        self.assertEqual(agent.n_output_tokens, 500)
        self.assertLess(agent.cost, agent.uncached_cost)
        with self.assertRaises(kvcsa.UnsupportedError):
            plan.tokenize("no tokenizer")
        self.assertEqual(kvcsa.format_name(kvcsa.Format.BF16), "bf16")


class OnlyRead:
    """A source without readinto(), which gives little at a time."""

    def __init__(self, data):
        self.file = io.BytesIO(data)

    def read(self, n):
        return self.file.read(min(n, 1000))


if __name__ == "__main__":
    unittest.main()
