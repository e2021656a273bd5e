"""A network of the host's own: plans, chunks, rows of any shape, and what sessions do with them as with all others."""

import ctypes
import dataclasses
import gc
import math
import threading
import unittest
from array import array

from support import Case, CountingAllocator, TINY, kvcsa

try:
    import numpy
except ImportError:
    numpy = None

LAYERS, KV_HEADS, HEADS, WIDTH, BLOCK = 2, 2, 4, 32, 16
KEY, VALUE, QUERY, WINDOW = range(4)


def row(what, layer, token, position, heads, width=WIDTH):
    """The network: rows that depend on the token, where it stands, and the layer."""
    made = (math.sin(0.7 * token + 1.3 * c + 0.9 * layer + 2.1 * what + 0.05 * position * (1 + c % 3))
            for c in range(heads * width))
    return array("f", (round(8 * x) / 8 for x in made) if what == WINDOW else made)  # windows: what fp8 has exactly


def rows(what, layer, tokens, first, heads, width=WIDTH):
    out = array("f")
    for i, token in enumerate(tokens):
        out += row(what, layer, token, first + i, heads, width)
    return out


def shaped(flat, *shape):
    return memoryview(flat).cast("B").cast("f", shape)


def attention(query, keys, values, scale, sink=None):
    """Of one head: plain softmax in double precision."""
    logits = [scale * math.fsum(q * k for q, k in zip(query, key)) for key in keys]
    top = max(logits + ([sink] if sink is not None else []))
    weights = [math.exp(logit - top) for logit in logits]
    total = math.fsum(weights) + (math.exp(sink - top) if sink is not None else 0.0)
    return [math.fsum(w * value[c] for w, value in zip(weights, values)) / total for c in range(len(values[0]))]


class Own(unittest.TestCase):
    """A model of two layers with grouped heads, in counted memory."""

    def setUp(self):
        self.memory = CountingAllocator()
        self.model = self.plan([kvcsa.PlanRow.heads(KV_HEADS, WIDTH)] * LAYERS)
        self.pool = kvcsa.Pool(n_threads=1, allocator=self.memory)
        self.addCleanup(self.balance)

    def balance(self):
        self.pool.close()
        self.model.close()
        self.assertGreater(self.memory.n_allocs, 0)
        self.assertEqual((self.memory.balance, self.memory.wrong), (0, []))

    def plan(self, plan, **params):
        model = kvcsa.Model.from_plan(plan, **{"block_tokens": BLOCK, "allocator": self.memory, **params})
        self.addCleanup(model.close)
        return model

    def session(self, tokens=(), model=None, pool=None, **params):
        session = (pool or self.pool).session(model or self.model, kvcsa.SessionParams(**params), cache_only=True)
        self.addCleanup(session.close)
        if tokens:
            session.append(tokens)
            self.compute(session, tokens)
        return session

    def write(self, chunk):
        for layer in range(LAYERS):
            chunk.write(layer, key=rows(KEY, layer, chunk.tokens, chunk.position, KV_HEADS),
                        value=rows(VALUE, layer, chunk.tokens, chunk.position, KV_HEADS))

    def compute(self, session, text, max_rows=0):
        """Everything that is queued, each row against plain attention over the text; answers (position, rows) of the chunks."""
        seen = []
        for chunk in session.chunks(max_rows):
            self.assertEqual(list(chunk.tokens), list(text[chunk.position: chunk.position + len(chunk)]))
            self.assertEqual(len(chunk.first_rows), LAYERS + 1)
            self.write(chunk)
            for layer in range(LAYERS):
                out = chunk.attend(layer, rows(QUERY, layer, chunk.tokens, chunk.position, HEADS))
                self.assertEqual((out.shape, out.format), ((len(chunk), HEADS, WIDTH), "f"))
                self.compare(out.tolist(), layer, text, chunk.position)
            seen.append((chunk.position, len(chunk)))
        self.assertEqual((len(session), session.stats().n_queued), (len(text), 0))
        return seen

    def compare(self, got, layer, text, first, sink=None, scale=WIDTH ** -0.5):
        keys = [row(KEY, layer, t, i, KV_HEADS) for i, t in enumerate(text)]
        values = [row(VALUE, layer, t, i, KV_HEADS) for i, t in enumerate(text)]
        for i, heads in enumerate(got):
            end = first + i + 1
            query = row(QUERY, layer, text[end - 1], end - 1, HEADS)
            for h, channels in enumerate(heads):
                part = slice(h // (HEADS // KV_HEADS) * WIDTH, (h // (HEADS // KV_HEADS) + 1) * WIDTH)
                want = attention(query[h * WIDTH: (h + 1) * WIDTH], [k[part] for k in keys[:end]],
                                 [v[part] for v in values[:end]], scale, None if sink is None else sink[h])
                for a, b in zip(channels, want):
                    # f32 sums of at most 64 terms below 1: 64 x 2^-24 twice, and the exponent's error
                    self.assertAlmostEqual(a, b, delta=2e-5)


TEXT = [3 + i * i % 41 for i in range(45)]


class Chunks(Own):
    def test_attention(self):
        for max_rows in (0, 1, 7):
            session = self.session(reuse=kvcsa.Reuse.NONE)
            session.append(TEXT)
            chunks = self.compute(session, TEXT, max_rows)
            self.assertEqual(sum(n for _, n in chunks), len(TEXT))
            self.assertTrue(all(n <= (max_rows or 128) for _, n in chunks))
            self.assertEqual(session.tokens(), array("i", TEXT))
        self.pool.check()

    def test_sink_scale_out(self):
        session = self.session(TEXT[:20])
        session.append(TEXT[20:24])
        sink, out = array("f", [0.5, -1.0, 2.0, 0.0]), array("f", bytes(4 * 4 * HEADS * WIDTH))
        with session.chunk() as chunk:
            self.write(chunk)
            query = shaped(rows(QUERY, 0, chunk.tokens, 20, HEADS), 4, HEADS, WIDTH)
            self.assertIs(chunk.attend(0, query, out, sink, 0.25), out)
            self.compare(shaped(out, 4, HEADS, WIDTH).tolist(), 0, TEXT, 20, sink, 0.25)
            for wrong in (sink[:3], array("f")):
                with self.assertRaisesRegex(kvcsa.ArgError, "sink"):
                    chunk.attend(0, query, sink=wrong)

    def test_a_prefix_is_shared(self):
        first = self.session(TEXT[:40])
        second, text = self.session(), TEXT[:36] + [1, 2, 3]
        second.append(text)
        chunks = self.compute(second, text)
        reuse = second.reuse()
        self.assertGreaterEqual(reuse.n_adopted, 2 * BLOCK)
        self.assertEqual(reuse.n_adopted + reuse.n_compute, len(text))
        self.assertEqual(sum(n for _, n in chunks), reuse.n_compute)
        self.assertEqual(self.pool.prefix_match(self.model, text), 2 * BLOCK)
        other = self.plan([kvcsa.PlanRow.heads(KV_HEADS, WIDTH)] * LAYERS, identity=7)  # other weights share nothing
        self.assertEqual(self.pool.prefix_match(other, text), 0)
        self.assertEqual(len(first), 40)
        self.pool.check()

    def test_the_last_row_again(self):
        """Everything is known: what is left is the row that the next token comes from."""
        self.session(TEXT[:32])
        again = self.session()
        again.append(TEXT[:32])
        with again.chunk() as chunk:
            self.assertEqual((chunk.replay, chunk.position, len(chunk), len(again)), (True, 31, 1, 32))
            for layer in range(LAYERS):  # entries are there: nothing is to be written
                self.compare(chunk.attend(layer, rows(QUERY, layer, TEXT[31:32], 31, HEADS)).tolist(), layer, TEXT, 31)
        self.assertEqual((bool(again.chunk()), again.reuse().n_compute), (False, 0))

    def test_fork_and_rewind(self):
        trunk = self.session(TEXT)
        with trunk.fork(21) as branch:
            text = TEXT[:21] + [9, 8, 7]
            branch.append(text[21:])
            self.assertEqual(self.compute(branch, text), [(21, 3)])
        trunk.rewind(30)
        trunk.append(TEXT[5:9])
        self.assertEqual(self.compute(trunk, TEXT[:30] + TEXT[5:9]), [(30, 4)])
        self.pool.check()

    def test_save_and_load(self):
        data = self.session(TEXT).to_bytes()
        with kvcsa.Pool(n_threads=1) as other:
            restored = self.session(pool=other)
            self.assertEqual(restored.from_bytes(data).n_tokens, len(TEXT))
            text = TEXT + [5, 6]
            restored.append(text[len(TEXT):])
            self.assertLessEqual(sum(n for _, n in self.compute(restored, text)), BLOCK + 2)
            strange = self.session(model=self.plan([kvcsa.PlanRow.heads(KV_HEADS, WIDTH)] * LAYERS, identity=7), pool=other)
            with self.assertRaises(kvcsa.MismatchError):
                strange.from_bytes(data)
            restored.close()
            strange.close()

    def test_an_exception_abandons(self):
        session = self.session(TEXT[:20])
        session.append(TEXT[20:30])
        with self.assertRaises(ZeroDivisionError):
            with session.chunk() as chunk:
                self.write(chunk)
                raise ZeroDivisionError
        self.assertTrue(chunk.closed)
        with self.assertRaises(ZeroDivisionError):
            for chunk in session.chunks(4):
                self.write(chunk)
                raise ZeroDivisionError
        for chunk in session.chunks(4):  # the first is committed, the second one left
            self.write(chunk)
            if chunk.position > 20:
                break
        gc.collect()
        self.assertEqual((len(session), session.stats().n_queued, chunk.closed), (24, 6, True))
        self.assertEqual(self.compute(session, TEXT[:30]), [(24, 6)])

    def test_by_hand(self):
        session = self.session()
        session.append(TEXT[:5])
        chunk = session.chunk()
        self.assertEqual((len(chunk), chunk.position, chunk.n_queued, chunk.replay, chunk.entries(1)), (5, 0, 0, False, 5))
        with self.assertRaises(kvcsa.ArgError):  # nothing is written
            chunk.commit()
        with self.assertRaises(kvcsa.ArgError):
            chunk.attend(0, rows(QUERY, 0, chunk.tokens, 0, HEADS))
        self.assertFalse(chunk.closed)
        for call in (lambda: session.append([1]), lambda: session.rewind(0), session.fork, session.to_bytes, session.chunk,
                     session.stats):
            with self.assertRaises(kvcsa.BusyError):
                call()
        self.assertEqual(len(session), 0)
        self.write(chunk)
        chunk.commit()
        chunk.abandon()  # too late
        self.assertEqual((chunk.closed, len(session)), (True, 5))
        for call in (chunk.commit, lambda: chunk.write(0), lambda: chunk.select(0, b"", b""), lambda: chunk.attend(0, None)):
            with self.assertRaisesRegex(kvcsa.ArgError, "closed"):
                call()
        none = session.chunk()
        self.assertEqual((bool(none), len(none), none.closed, list(none.tokens)), (False, 0, True, []))
        with none:
            pass
        session.append(TEXT[5:8])
        stale, again = chunk, session.chunk()  # a closed chunk does not write to the open one
        with self.assertRaisesRegex(kvcsa.ArgError, "closed"):
            stale.write(0, key=rows(KEY, 0, again.tokens, 5, KV_HEADS))
        session.close()  # with an open chunk
        again.abandon()
        self.assertTrue(again.closed)

    def test_a_layer_that_was_not_written_closes_a_with(self):
        session = self.session()
        session.append(TEXT[:5])
        with self.assertRaises(kvcsa.ArgError):
            with session.chunk() as chunk:
                pass
        self.assertEqual((chunk.closed, len(session), session.stats().n_queued), (True, 0, 5))

    def test_cancel(self):
        session = self.session(TEXT[:20])
        session.append(TEXT[20:30])
        with self.assertRaises(kvcsa.CancelledError):
            with session.chunk(5) as chunk:
                self.write(chunk)
                thread = threading.Thread(target=session.cancel)
                thread.start()
                thread.join()
        self.assertEqual((chunk.closed, len(session), session.stats().n_queued), (True, 20, 0))
        session.append(TEXT[20:22])
        self.assertEqual(self.compute(session, TEXT[:22]), [(20, 2)])

    def test_read_rows(self):
        session = self.session(TEXT)
        for layer in range(LAYERS):
            for what, number in ((kvcsa.Read.KEYS, KEY), (kvcsa.Read.VALUES, VALUE)):
                got = session.read_rows(layer, what, 3, 40)
                self.assertEqual(got.shape, (40, KV_HEADS, WIDTH))
                self.assertEqual(got.cast("B").tobytes(), rows(number, layer, TEXT[3:43], 3, KV_HEADS).tobytes())
        out = array("f", bytes(4 * 2 * KV_HEADS * WIDTH))
        self.assertIs(session.read_rows(1, kvcsa.Read.KEYS, 43, 2, out), out)
        self.assertEqual(out, rows(KEY, 1, TEXT[43:], 43, KV_HEADS))
        for bad in ((0, kvcsa.Read.KEYS, 44, 2), (0, kvcsa.Read.WINDOW, 0, 1), (0, kvcsa.Read.INDEX_KEYS, 0, 1), (0, 99, 0, 1),
                    (LAYERS, kvcsa.Read.KEYS, 0, 1), (0, kvcsa.Read.KEYS, -1, 1), (0, kvcsa.Read.KEYS, 0, -1)):
            with self.assertRaises(kvcsa.ArgError):
                session.read_rows(*bad)
        for bad in (out[:5], array("d", out), kvcsa.Rows(1 << 20)):
            with self.assertRaises(kvcsa.ArgError):
                session.read_rows(1, kvcsa.Read.KEYS, 43, 2, bad)
        session.append(TEXT[:2])
        with session.chunk() as chunk:  # what is written can be read before it is committed
            self.write(chunk)
            self.assertEqual(session.read_rows(0, kvcsa.Read.KEYS, 45, 2).cast("B").tobytes(),
                             rows(KEY, 0, TEXT[:2], 45, KV_HEADS).tobytes())

    def test_formats(self):
        """What is read back is what was written, rounded as the format does."""
        # half a step below 1; q8_0 (docs/formats.md "Entries"): bf16 first, then a step of 1/127, and its scale is an fp16
        for name, delta in (("bf16", 2 ** -9), ("f16", 2 ** -12), ("q8_0", 2 ** -9 + 1 / 254 + 2 ** -11)):
            model = self.plan([kvcsa.PlanRow.heads(KV_HEADS, WIDTH, name)] * LAYERS)
            session = self.session(model=model)
            session.append(TEXT[:9])
            with session.chunk() as chunk:
                self.write(chunk)
            got = array("f", session.read_rows(0, kvcsa.Read.VALUES, 0, 9).cast("B").cast("f"))
            want = rows(VALUE, 0, TEXT[:9], 0, KV_HEADS)
            self.assertNotEqual(got, want)
            for a, b in zip(got, want):
                self.assertAlmostEqual(a, b, delta=delta)

    def test_other_sessions_have_no_chunks(self):
        session = self.session(TEXT[:4])
        self.assertGreater(session.stats().n_tokens, 0)
        with self.assertRaises(kvcsa.Error):
            self.pool.session(self.model)
        session.append([1])
        with self.assertRaises(kvcsa.Error):
            session.step()


class WithWeights(Case):
    def test_a_checkpoint_has_no_chunks(self):
        with self.assertRaises(kvcsa.Error):
            self.pool.session(self.model, cache_only=True)
        with self.assertRaises(kvcsa.ArgError):
            self.session().chunk()


class Arrays(Own):
    def chunk(self, n=6):
        session = self.session()
        session.append(TEXT[:n])
        chunk = session.chunk()
        self.addCleanup(chunk.abandon)
        self.addCleanup(session.close)
        return session, chunk

    def test_shapes(self):
        session, chunk = self.chunk()
        key, value = rows(KEY, 0, chunk.tokens, 0, KV_HEADS), rows(VALUE, 0, chunk.tokens, 0, KV_HEADS)
        for shape in ((6 * KV_HEADS * WIDTH,), (6, KV_HEADS * WIDTH), (6, KV_HEADS, WIDTH)):
            for make in (lambda flat: shaped(flat, *shape), lambda flat: shaped(flat, *shape).toreadonly()):
                chunk.write(0, key=shaped(array("f", bytes(4 * len(key))), *shape), value=make(value))
                chunk.write(0, key=make(key), value=make(value))  # a second time replaces the first
                self.assertEqual(session.read_rows(0, kvcsa.Read.KEYS, 0, 6).tobytes(), key.tobytes())
        held = (ctypes.c_float * len(key)).from_buffer(key)
        chunk.write(0, key=held, value=kvcsa.Rows(value.buffer_info()[0]))
        self.assertEqual(session.read_rows(0, kvcsa.Read.VALUES, 0, 6).tobytes(), value.tobytes())

    def test_addresses_with_strides(self):
        session, chunk = self.chunk()
        want, wide = [rows(what, 0, chunk.tokens, 0, KV_HEADS) for what in (KEY, VALUE)], array("f")
        for i in range(6):  # key and value of a position side by side, and something behind them
            for h in range(KV_HEADS):
                for part in want:
                    wide += part[(i * KV_HEADS + h) * WIDTH: (i * KV_HEADS + h + 1) * WIDTH]
            wide += array("f", [9.0] * 5)
        at, row_stride = wide.buffer_info()[0], 2 * KV_HEADS * WIDTH + 5
        chunk.write(0, key=kvcsa.Rows(at, row_stride, 2 * WIDTH), value=kvcsa.Rows(at + 4 * WIDTH, row_stride, 2 * WIDTH))
        for what, part in zip((kvcsa.Read.KEYS, kvcsa.Read.VALUES), want):
            self.assertEqual(session.read_rows(0, what, 0, 6).tobytes(), part.tobytes())
        query = rows(QUERY, 0, chunk.tokens, 0, HEADS)
        out = array("f", bytes(4 * len(query)))
        where = kvcsa.Rows(out.buffer_info()[0])
        self.assertIs(chunk.attend(0, kvcsa.Rows(query.buffer_info()[0]), where, n_heads=HEADS), where)
        self.compare(shaped(out, 6, HEADS, WIDTH).tolist(), 0, TEXT, 0)
        with self.assertRaisesRegex(kvcsa.ArgError, "n_heads"):
            chunk.attend(0, kvcsa.Rows(query.buffer_info()[0]))

    def test_refused(self):
        _, chunk = self.chunk()
        good = rows(KEY, 0, chunk.tokens, 0, KV_HEADS)
        size = len(good)
        for wrong, error, words in (
                (list(good), TypeError, "not list"), ("text", TypeError, "not str"), (object(), TypeError, "not object"),
                (array("d", good), kvcsa.ArgError, "elements are 'd'"), (good.tobytes(), kvcsa.ArgError, "elements are 'B'"),
                (good[:-1], kvcsa.ArgError, "shape is"), (shaped(good, 3, size // 3), kvcsa.ArgError, "shape is"),
                (shaped(good, 6, WIDTH, KV_HEADS), kvcsa.ArgError, "shape is"),
                (shaped(good, 6, KV_HEADS, WIDTH // 2, 2), kvcsa.ArgError, "dimensions"), (array("f"), kvcsa.ArgError, "shape")):
            with self.assertRaisesRegex(error, words):
                chunk.write(0, key=wrong, value=good)
            with self.assertRaisesRegex(error, words):
                chunk.write(0, key=good, value=wrong)
        query = rows(QUERY, 0, chunk.tokens, 0, HEADS)
        for bad, error in ((query.tobytes(), kvcsa.ArgError), (query[:-3], kvcsa.ArgError), (None, kvcsa.ArgError)):
            with self.assertRaises(error):
                chunk.attend(0, bad)
        with self.assertRaisesRegex(kvcsa.ArgError, "read-only"):
            chunk.attend(0, query, shaped(query, 6, HEADS, WIDTH).toreadonly())
        with self.assertRaisesRegex(kvcsa.ArgError, "out: shape"):
            chunk.attend(0, query, good)
        with self.assertRaises(kvcsa.ArgError):
            chunk.write(0, value=good)  # the key is missing
        with self.assertRaises(kvcsa.ArgError):
            chunk.write(0, key=good, value=good, window=good[: 6 * WIDTH])  # there is no window
        with self.assertRaises(kvcsa.ArgError):
            chunk.write(LAYERS, key=good, value=good)
        with self.assertRaises(kvcsa.ArgError):
            chunk.select(0, array("f"), array("f"))
        resized = good[:]
        chunk.write(0, key=resized, value=good)
        resized.append(0.0)  # nothing holds it after the call, nor after one that failed:
        with self.assertRaises(kvcsa.ArgError):
            chunk.write(0, key=resized, value=good)
        resized.append(0.0)

    def test_device_pointers_without_a_device(self):
        _, chunk = self.chunk()
        good = rows(KEY, 0, chunk.tokens, 0, KV_HEADS)
        there = kvcsa.Rows(good.buffer_info()[0], on_device=True)
        with self.assertRaisesRegex(kvcsa.ArgError, "device"):
            chunk.write(0, key=there, value=good)
        with self.assertRaisesRegex(kvcsa.ArgError, "out is wanted"):
            chunk.attend(0, there, n_heads=KV_HEADS)
        with self.assertRaises(kvcsa.UnsupportedError):
            chunk.write(0, key=there, value=there)

    @unittest.skipUnless(numpy, "no numpy")
    def test_numpy(self):
        session, chunk = self.chunk()
        key, value, query = (numpy.frombuffer(rows(what, 0, chunk.tokens, 0, heads), numpy.float32).reshape(6, heads, WIDTH)
                             for what, heads in ((KEY, KV_HEADS), (VALUE, KV_HEADS), (QUERY, HEADS)))
        both = numpy.stack([key, value], axis=2)  # [6, heads, 2, width]: two strided views
        chunk.write(0, key=both[:, :, 0], value=both[:, :, 1])
        for what, part in ((kvcsa.Read.KEYS, key), (kvcsa.Read.VALUES, value)):
            self.assertTrue((numpy.asarray(session.read_rows(0, what, 0, 6)) == part).all())
        by_head = numpy.ascontiguousarray(key.transpose(1, 0, 2))  # [heads, 6, width], as many frameworks have it
        chunk.write(0, key=by_head.transpose(1, 0, 2), value=numpy.asfortranarray(value.reshape(6, -1)).copy("C"))
        self.assertTrue((numpy.asarray(session.read_rows(0, kvcsa.Read.KEYS, 0, 6)) == key).all())
        room = numpy.full((HEADS, 6, WIDTH + 3), 7.0, numpy.float32)
        out = room.transpose(1, 0, 2)[:, :, :WIDTH]
        self.assertIs(chunk.attend(0, query, out), out)
        self.compare(out.tolist(), 0, TEXT, 0)
        self.assertTrue((room[:, :, WIDTH:] == 7.0).all())
        self.assertTrue((numpy.asarray(chunk.attend(0, query.reshape(6, -1))) == out).all())
        for wrong, words in ((numpy.asfortranarray(key), "last axis"), (key[:, :, ::-1], "last axis"), (key[::-1], "axis 0"),
                             (key[:, ::-1], "axis 1"), (numpy.broadcast_to(key[:1], key.shape), "axis 0"),
                             (key.astype(numpy.float64), "'d'"), (key.astype(numpy.float16), "'e'"), (key.astype(">f4"), "'>f'"),
                             (key[0], "shape"), (numpy.float32(1), "dimensions")):
            with self.assertRaisesRegex(kvcsa.ArgError, words):
                chunk.write(0, key=wrong, value=value)
        frozen = out.copy()
        frozen.flags.writeable = False
        with self.assertRaisesRegex(kvcsa.ArgError, "read-only"):
            chunk.attend(0, query, frozen)
        read_only = key.copy()
        read_only.flags.writeable = False
        chunk.write(0, key=read_only, value=value)


class Sparse(Own):
    """A window and entries of four positions each, of which an index finds some."""

    RATIO, WINDOW, TOP, INDEX_HEADS, INDEX_WIDTH = 4, 16, 4, 2, 32
    PLAN = kvcsa.PlanRow.sparse(WIDTH, window_tokens=WINDOW, select_entries=TOP, index_heads=INDEX_HEADS,
                                index_width=INDEX_WIDTH, ratio=RATIO, format="f32")

    def setUp(self):
        super().setUp()
        reader = dataclasses.replace(self.PLAN, kv_owner=0, index_owner=0, select_owner=0, select=kvcsa.Select.INHERITED)
        self.sparse = self.plan([self.PLAN, reader], block_tokens=32)
        self.latent = self.sparse.plan_row(0)

    def run_chunks(self, session, text, max_rows=0):
        seen = []
        for chunk in session.chunks(max_rows):
            n, first = len(chunk), chunk.position
            self.assertEqual(chunk.entries(0), (first + n) // self.RATIO - first // self.RATIO)
            entries = [(e, text[e * self.RATIO]) for e in range(first // self.RATIO, (first + n) // self.RATIO)]
            made = {}
            if not chunk.replay:
                key, index = array("f"), array("f")
                for e, token in entries:
                    key += row(KEY, 0, token, e, 1)
                    index += row(VALUE, 0, token, e, 1, self.INDEX_WIDTH)
                made = {"key": key, "index_key": index}
            pending = self.latent.pending_bytes // 4 // (self.RATIO - 1)
            chunk.write(0, window=rows(WINDOW, 0, chunk.tokens, first, 1),
                        pending=rows(WINDOW, 3, chunk.tokens, first, 1, pending), **made)
            ids = chunk.select(0, rows(QUERY, 0, chunk.tokens, first, self.INDEX_HEADS, self.INDEX_WIDTH),
                               rows(QUERY, 1, chunk.tokens, first, 1, self.INDEX_HEADS)).tolist()
            chunk.write(1, window=rows(WINDOW, 1, chunk.tokens, first, 1))
            for layer in range(LAYERS):
                out = chunk.attend(layer, rows(QUERY, layer, chunk.tokens, first, HEADS)).tolist()
                self.check(chunk, layer, text, ids, out)
            seen.append((chunk.replay, first, n))
        self.assertEqual(len(session), len(text))
        return seen

    def check(self, chunk, layer, text, ids, out):
        """Plain attention over the window and what was selected."""
        for i in range(len(chunk)):
            position = chunk.position + i
            if position < chunk.first_rows[layer + 1]:
                continue
            chosen = [e for e in ids[i] if e >= 0]
            self.assertEqual(len(chosen), min(self.TOP, (position + 1) // self.RATIO))
            self.assertEqual(chosen, sorted(set(chosen)))
            self.assertTrue(all((e + 1) * self.RATIO <= position + 1 for e in chosen))
            kept = [row(KEY, 0, text[e * self.RATIO], e, 1) for e in chosen]
            kept += [row(WINDOW, layer, text[p], p, 1) for p in range(max(0, position - self.WINDOW + 1), position + 1)]
            query = row(QUERY, layer, chunk.tokens[i], position, HEADS)
            for h in range(HEADS):
                want = attention(query[h * WIDTH: (h + 1) * WIDTH], kept, kept, WIDTH ** -0.5)
                for a, b in zip(out[i][h], want):
                    self.assertAlmostEqual(a, b, delta=2e-5)

    def test_window_and_selection(self):
        for max_rows in (0, 5):
            session = self.session(model=self.sparse, reuse=kvcsa.Reuse.NONE)
            session.append(TEXT)
            seen = self.run_chunks(session, TEXT, max_rows)
            self.assertEqual([replay for replay, _, _ in seen], [False] * len(seen))
            for layer in range(LAYERS):
                got = session.read_rows(layer, kvcsa.Read.WINDOW, 30, 15)
                self.assertEqual((got.shape, got.tobytes()), ((15, WIDTH), rows(WINDOW, layer, TEXT[30:], 30, 1).tobytes()))
                self.assertEqual(session.read_rows(layer, kvcsa.Read.KEYS, 3, 2).tobytes(),
                                 (row(KEY, 0, TEXT[12], 3, 1) + row(KEY, 0, TEXT[16], 4, 1)).tobytes())
            pending = self.latent.pending_bytes // 4 // (self.RATIO - 1)
            self.assertEqual(session.read_rows(0, kvcsa.Read.PENDING, 44, 1).tobytes(),
                             row(WINDOW, 3, TEXT[44], 44, 1, pending).tobytes())
            session.close()

    def test_windows_are_made_anew(self):
        first = self.session(model=self.sparse)
        first.append(TEXT)
        self.run_chunks(first, TEXT)
        second = self.session(model=self.sparse)
        text = TEXT[:42] + [1, 2, 3]
        second.append(text)
        seen = self.run_chunks(second, text)
        self.assertGreaterEqual(second.reuse().n_adopted, 32)
        self.assertTrue(seen[0][0], seen)  # a replay in front of what is new
        self.assertEqual(sum(n for replay, _, n in seen if not replay), second.reuse().n_compute)
        got = second.read_rows(0, kvcsa.Read.INDEX_KEYS, 0, 11)
        self.assertEqual(got.shape, (11, self.INDEX_WIDTH))
        self.pool.check()
        first.close()
        second.close()


class PlanOfACheckpoint(Own):
    def test_layers_of_every_kind(self):
        """What shapes a plan wants is asked of its rows alone: window only, owners, readers, candidates."""
        model = kvcsa.Model(TINY, plan_only=True)
        self.addCleanup(model.close)
        plan, session = model.plan(), self.session(model=model)
        self.assertEqual((plan[0].ratio, plan[0].entry_width), (0, 0))
        session.append(TEXT)
        for chunk in session.chunks(20):
            n = len(chunk)
            for r in plan:
                owns, entries = r.kv_owner == r.layer, chunk.entries(r.layer)
                chunk.write(r.layer, window=rows(WINDOW, r.layer, chunk.tokens, chunk.position, 1, 64),
                            key=rows(KEY, r.layer, range(entries), 0, 1, 64) if owns else None,
                            index_key=rows(VALUE, r.layer, range(entries), 0, 1, 32) if r.index_bytes else None,
                            pending=array("f", bytes(n * (r.pending_bytes // (r.ratio - 1)))) if r.pending_bytes else None)
                if r.select_owner == r.layer:
                    ids = chunk.select(r.layer, array("f", bytes(4 * n * r.index_heads * r.index_width)),
                                       array("f", bytes(4 * n * r.index_heads)))
                    self.assertEqual(ids.shape, (n, r.select_entries))
                    self.assertTrue(all(-1 <= i < len(TEXT) for row in ids.tolist() for i in row))
                out = chunk.attend(r.layer, rows(QUERY, r.layer, chunk.tokens, chunk.position, 3, 64))
                self.assertEqual(out.shape, (n, 3, 64))
                self.assertTrue(all(abs(x) < 1.1 for row in out.tolist() for head in row for x in head))
        self.assertEqual(len(session), len(TEXT))
        self.assertEqual(session.read_rows(0, kvcsa.Read.WINDOW, 40, 5).shape, (5, 64))
        self.assertEqual(session.read_rows(6, kvcsa.Read.INDEX_KEYS, 0, 45).shape, (45, 32))  # layer 4's
        session.close()


class Plans(Own):
    def test_rows(self):
        plan = self.model.plan()
        self.assertIsInstance(plan[0], kvcsa.PlanRow)
        self.assertEqual([(r.layer, r.kv_owner, r.index_owner, r.select_owner) for r in plan], [(0, 0, -1, -1), (1, 1, -1, -1)])
        self.assertEqual((plan[1].kv_heads, plan[1].entry_width, plan[1].entry_format), (KV_HEADS, WIDTH, kvcsa.Format.F32))
        self.assertAlmostEqual(self.model.cost(160).rate, LAYERS * KV_HEADS * 2 * WIDTH * 4)
        again = self.plan(plan)  # what the library answers is a plan
        self.assertEqual((again.plan(), again.info.fingerprint), (plan, self.model.info.fingerprint))
        fields = {"kv_owner": kvcsa.SELF, "select": kvcsa.Select.ALL, "ratio": 1, "kv_heads": KV_HEADS, "entry_width": WIDTH,
                  "entry_format": "f32", "value_kind": kvcsa.Value.OWN, "value_width": WIDTH, "value_format": "f32"}
        self.assertEqual(self.plan([fields, fields]).plan(), plan)
        owner = kvcsa.PlanRow.heads(KV_HEADS, WIDTH, "bf16")
        shared = self.plan([owner, dataclasses.replace(owner, kv_owner=0)])  # layer 1 reads what layer 0 has
        self.assertAlmostEqual(shared.cost(160).rate, KV_HEADS * 2 * WIDTH * 2)

    def test_info(self):
        model = self.plan([kvcsa.PlanRow.heads(1, WIDTH)], name="mine", max_tokens=1000, vocab_tokens=50, identity=3)
        self.assertEqual((model.info.architecture, model.info.n_layers, model.info.block_tokens), ("mine", 1, BLOCK))
        self.assertEqual((model.info.max_context_tokens, model.info.vocab_tokens), (1000, 50))
        self.assertEqual(self.model.info.architecture, "plan")
        self.assertNotEqual(model.info.fingerprint,
                            self.plan([kvcsa.PlanRow.heads(1, WIDTH)], name="mine", identity=4).info.fingerprint)
        session = self.session(model=model)
        with self.assertRaises(kvcsa.ArgError):
            session.append([50])
        with self.assertRaises(kvcsa.LimitError):
            session.append([1] * 1001)

    def test_refused(self):
        good = kvcsa.PlanRow.heads(KV_HEADS, WIDTH)
        for wrong, error, words in (
                ([], kvcsa.ArgError, "n_rows"),
                ([good, dataclasses.replace(good, kv_owner=5)], kvcsa.FormatError, "layer 1: kv_owner is 5"),
                ([dataclasses.replace(good, kv_heads=2**40)], kvcsa.ArgError, "layer 0: kv_heads is 1099511627776"),
                ([dataclasses.replace(good, ratio=-1)], kvcsa.ArgError, "layer 0: ratio is -1"),
                ([dataclasses.replace(good, entry_bytes=3)], kvcsa.FormatError, "layer 0: entry_bytes is 3"),
                ([{"kv_heads": "many"}], TypeError, ""), ([{"heads": 2}], TypeError, "heads"), ([7], TypeError, ""),
                ([{"entry_format": "f33"}], kvcsa.ArgError, "f33")):
            with self.assertRaisesRegex(error, words):
                self.plan(wrong)
        with self.assertRaisesRegex(kvcsa.ArgError, "format is 'fp3', must be one of"):
            kvcsa.PlanRow.heads(1, WIDTH, "fp3")
        with self.assertRaises(kvcsa.ArgError):
            self.plan([good], name="a\0b")
        with self.assertRaises(kvcsa.Error):
            self.plan([good], block_tokens=7)
        self.assertEqual(kvcsa.PlanRow.heads(1, WIDTH, kvcsa.Format.F16), kvcsa.PlanRow.heads(1, WIDTH, "f16"))
        with self.assertRaises(kvcsa.NoMemError):
            kvcsa.Model.from_plan([good], allocator=CountingAllocator(fail_after=0))


if __name__ == "__main__":
    unittest.main()
