"""What C calls back: exceptions stay on Python's side, views end with the call, signals and cancels stop a step."""

import concurrent.futures
import io
import logging
import os
import signal
import tempfile
import threading
import time
import unittest

from support import Case, CountingAllocator, TEXT, TINY, TREE, kvcsa

try:
    import numpy
except ImportError:
    numpy = None


class Mine(Exception):
    pass


def fail(*_):
    raise Mine("from inside")


class Callbacks(Case):
    def queued(self, n=700):
        session = self.session("", reuse=kvcsa.Reuse.NONE)
        session.append(self.long_tokens(n))
        return session

    def still_works(self, session):
        """As if the failed step had not been asked for."""
        session.append(self.model.tokenize(TEXT))
        session.step()
        other = self.session()
        self.assertEqual(session.logits(), other.logits())

    def test_progress_sees_and_cancels(self):
        session = self.queued()
        seen = []
        session.step(progress=lambda s, done, queued: seen.append((s, done, queued)))
        self.assertTrue(all(s is session for s, _, _ in seen))
        self.assertEqual(len(session), 700)
        self.assertEqual((seen[0][1], seen[0][2]), (0, 700))
        session.append(self.long_tokens(300))
        with self.assertRaises(kvcsa.CancelledError) as caught:
            session.step(progress=lambda s, done, queued: done >= 128)
        self.assertEqual(len(session), 700)
        self.assertIsInstance(caught.exception.results[0].error, kvcsa.CancelledError)
        self.assertEqual(caught.exception.results[0].n_queued, 0)

    def test_exception_in_progress(self):
        session = self.queued()
        with self.assertRaisesRegex(Mine, "from inside"):
            session.step(progress=fail)
        self.assertEqual((len(session), session.stats().n_queued), (0, 0))
        self.still_works(session)

    def test_exception_in_logits(self):
        session = self.session("")
        rows = []

        def on_logits(position, row):
            rows.append(position)
            if position == 3:
                raise Mine("fourth row")

        session.append(self.long_tokens(300), on_logits=on_logits)
        with self.assertRaisesRegex(Mine, "fourth row"):
            session.step()
        self.assertEqual(rows, [0, 1, 2, 3])
        self.assertEqual(len(session), 0)
        self.still_works(session)

    def test_logits_of_rows(self):
        session, got, every = self.session(""), {}, self.session("")
        rows = []
        tokens = self.model.tokenize(TEXT)
        session.append(tokens, on_logits=lambda position, row: got.update({position: row.tolist()}), rows=[0, 5, 7])
        session.step()
        every.append(tokens, on_logits=lambda position, row: rows.append(row.tolist()))
        every.step()
        self.assertEqual(got, {i: rows[i] for i in (0, 5, 7)})
        self.assertEqual(session.logits().tolist(), rows[-1])
        with self.assertRaises(kvcsa.ArgError):
            session.append(tokens, rows=[1])
        with self.assertRaises(kvcsa.ArgError):
            session.append(tokens, rows=[3, 1], on_logits=fail)
        session.append(tokens, logits=kvcsa.Logits.NONE)
        session.step()
        with self.assertRaises(kvcsa.ArgError):
            session.logits()

    def test_functions_live_until_their_tokens_are_computed(self):
        session, n = self.session(""), []
        for _ in range(3):
            session.append(self.long_tokens(200), on_logits=lambda position, row: n.append(position))
        while session.step(max_rows=128).n_queued:
            pass
        self.assertEqual(n, list(range(600)))
        self.assertEqual(session._queued, [])

    def test_a_kept_view_is_refused(self):
        for keep in (lambda row: row[3:9], memoryview, lambda row: row.cast("B")):
            session, kept = self.session(""), []
            session.append(self.model.tokenize(TEXT), on_logits=lambda position, row: kept.append(keep(row)))
            with self.assertRaisesRegex(BufferError, "copy it"):
                session.step()
            self.assertEqual(len(kept), 1)  # and no row after it

    def test_the_view_itself_ends_with_the_callback(self):
        session, kept = self.session(""), []
        session.append(self.model.tokenize(TEXT), on_logits=lambda position, row: kept.append(row))
        session.step()
        for row in kept:
            with self.assertRaisesRegex(ValueError, "released"):
                row[0]

    @unittest.skipUnless(numpy, "no numpy")
    def test_numpy_views(self):
        session, best = self.session(""), []

        def on_logits(position, row):
            best.append(int(numpy.frombuffer(row, dtype=numpy.float32).argmax()))

        tokens = numpy.array(self.model.tokenize(TEXT), dtype=numpy.int32)
        session.append(tokens, on_logits=on_logits)
        session.step()
        self.assertEqual(best[-1], session.sample())
        out = numpy.empty(self.model.info.vocab_tokens, dtype=numpy.float32)
        self.assertIs(session.logits(out), out)
        view = numpy.frombuffer(session.logits(), dtype=numpy.float32)
        self.assertTrue((view == out).all())
        self.assertEqual(kvcsa.Sampler().sample(out, 0), session.sample())
        self.assertEqual(session.common_prefix(tokens.astype(numpy.int64)), len(tokens))
        for bad in (out[::2], out.astype(numpy.float64), out[:5]):
            with self.assertRaises(kvcsa.ArgError):
                session.logits(bad)
        kept = []
        session.append(tokens, on_logits=lambda position, row: kept.append(numpy.frombuffer(row, dtype=numpy.float32)))
        with self.assertRaises(BufferError):
            session.step()

    def test_log_and_its_exceptions(self):
        lines = []
        with kvcsa.Pool(n_threads=1, log=lambda level, text: lines.append((level, text))):
            pass
        self.assertTrue(lines and all(isinstance(level, int) and isinstance(text, str) for level, text in lines), lines)
        with self.assertLogs("kvcsa.test", logging.DEBUG):
            kvcsa.Model(TINY, plan_only=True, log=logging.getLogger("kvcsa.test")).close()
            kvcsa.Pool(log=logging.getLogger("kvcsa.test")).close()
        with self.assertRaises(Mine):
            kvcsa.Pool(n_threads=1, log=fail)

    def test_trace_and_its_exceptions(self):
        events = []
        with kvcsa.Pool(n_threads=1, trace=events.append) as pool:
            for _ in range(2):
                with pool.session(self.model) as session:
                    session.append(self.long_tokens(400))
                    session.step()
        kinds = {event.kind for event in events}
        self.assertLessEqual({kvcsa.Trace.HIT, kvcsa.Trace.MISS, kvcsa.Trace.PUBLISH, kvcsa.Trace.REPLAY}, kinds)
        self.assertTrue(any(event.reason == kvcsa.Reason.UNKNOWN for event in events))

        def only_publish(event):
            if event.kind == kvcsa.Trace.PUBLISH:
                raise Mine("published")

        with kvcsa.Pool(n_threads=1, trace=only_publish) as pool, pool.session(self.model) as session:
            session.append(self.long_tokens(700))
            with self.assertRaisesRegex(Mine, "published"):
                session.step()
            self.assertEqual(len(session), 0)  # the step was cancelled

    def test_executor(self):
        want = self.session().logits()
        for width in (1, 3):
            with concurrent.futures.ThreadPoolExecutor(width) as threads:
                executor = kvcsa.Executor(lambda task, n: list(threads.map(task, range(n))), width)
                with kvcsa.Pool(executor=executor) as pool, pool.session(self.model) as session:
                    session.append(self.model.tokenize(TEXT))
                    session.step()
                    self.assertEqual(session.logits(), want)

    def test_executor_that_fails_or_forgets(self):
        want = self.session().logits()
        calls = []

        def lazy(task, n):  # not all, and one twice
            calls.append(n)
            task(0)
            task(0)

        def failing(task, n):
            task(n - 1)
            raise Mine("half way")

        for run, expect in ((lazy, None), (failing, Mine)):
            with kvcsa.Pool(executor=kvcsa.Executor(run, 4)) as pool, pool.session(self.model) as session:
                session.append(self.model.tokenize(TEXT))
                if expect:
                    with self.assertRaises(expect):
                        session.step()
                else:
                    session.step()
                    self.assertEqual(session.logits(), want)
        self.assertGreater(max(calls), 1)

    def test_allocator_without_memory(self):
        for n in (0, 3, 20):
            memory = CountingAllocator(fail_after=n)
            with self.assertRaises(kvcsa.NoMemError) as caught:
                with kvcsa.Model(TINY, allocator=memory):
                    pass
            self.assertIsInstance(caught.exception, MemoryError)
            self.assertEqual((memory.balance, memory.wrong), (0, []))

    def test_allocator_that_raises(self):
        with self.assertRaises(Mine):
            kvcsa.Pool(allocator=kvcsa.Allocator(fail, lambda address, size, align: None))

    def test_files_that_fail(self):
        session = self.session()
        tokens = session.tokens()

        class Broken(io.RawIOBase):
            def write(self, data):
                raise Mine("disk")

            def readinto(self, data):
                raise Mine("disk")

            def readable(self):
                return True

        for call in (session.write, session.read):
            with self.assertRaisesRegex(Mine, "disk"):
                call(Broken())
        self.assertEqual(session.tokens(), tokens)
        with self.assertRaises(kvcsa.FormatError):
            session.from_bytes(session.to_bytes()[:-100])
        keep = []

        class Keeps(io.RawIOBase):
            def write(self, data):
                keep.append(data[:])
                return len(data)

        with self.assertRaises(BufferError):
            session.write(Keeps())

    def test_comparisons_that_are_stopped(self):
        exact = kvcsa.Setting(self.model, self.pool)
        with self.assertRaises(Mine):
            kvcsa.compare_text(exact, [exact], self.long_tokens(300), progress=fail)
        with self.assertRaises(kvcsa.CancelledError):
            kvcsa.compare_text(exact, [exact], self.long_tokens(300), progress=lambda done, n: True)

    def test_synthetic_checkpoint(self):
        config = TREE / "test" / "data" / "synth-small.json"
        seen = []
        info = kvcsa.synth_checkpoint(config, allocator=self.memory)
        self.assertGreater(info.total_bytes, 0)
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "made")
            kvcsa.synth_checkpoint(config, made, seed=7, progress=lambda done, n: seen.append((done, n)))
            self.assertEqual(seen[-1][1], info.total_bytes)
            with kvcsa.Model(made) as model:
                self.assertEqual(model.info.n_tensors, info.n_tensors)
            with self.assertRaises(Mine):
                kvcsa.synth_checkpoint(config, os.path.join(folder, "other"), progress=fail)


class Stopping(Case):
    """A long step is stopped soon, from a thread or a signal, and the session is as before."""

    def long_step(self, stop, expect):
        session = self.session("", reuse=kvcsa.Reuse.NONE)
        session.append(self.long_tokens(200))
        session.step()
        want = session.logits()
        text = self.long_tokens(6000)
        session.append(text)
        began = threading.Event()

        def progress(_session, _done, _queued):
            began.set()

        def later():
            began.wait(60)
            stop(session)

        thread = threading.Thread(target=later)
        thread.start()
        with self.assertRaises(expect) as caught:
            session.step(progress=progress)
        thread.join()
        self.assertEqual((len(session), session.stats().n_queued), (200, 0))
        self.assertLess(session.stats().n_computed_rows, 6200)
        self.assertEqual(session.logits(), want)
        return caught.exception

    def test_cancel_from_another_thread(self):
        self.long_step(lambda session: session.cancel(), kvcsa.CancelledError)

    def test_keyboard_interrupt(self):
        before = signal.getsignal(signal.SIGINT)
        self.long_step(lambda session: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt)
        self.assertIs(signal.getsignal(signal.SIGINT), before)

    def test_keyboard_interrupt_without_a_progress_function(self):
        session = self.session("", reuse=kvcsa.Reuse.NONE)
        session.append(self.long_tokens(6000))
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        begin = time.monotonic()
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            session.step()
        timer.join()
        self.assertEqual(len(session), 0)
        self.assertLess(session.stats().n_computed_rows, 6000)
        self.assertLess(time.monotonic() - begin, 30)

    def test_handlers_that_raise_and_that_do_not(self):
        def alarm(_number, _frame):
            raise Mine("too long")

        seen = []
        before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        before = signal.signal(signal.SIGALRM, alarm)
        self.addCleanup(signal.signal, signal.SIGALRM, before)

        def stop(_session):  # the first one only looks; the step goes on
            os.kill(os.getpid(), signal.SIGUSR1)
            while not seen:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGALRM)

        error = self.long_step(stop, Mine)
        self.assertEqual((str(error), seen), ("too long", [signal.SIGUSR1]))
        self.assertIs(signal.getsignal(signal.SIGALRM), alarm)

    def test_interrupt_in_a_snapshot(self):
        session = self.session()

        class Interrupts(io.RawIOBase):
            def write(self, data):
                os.kill(os.getpid(), signal.SIGINT)
                return len(data)

        with self.assertRaises(KeyboardInterrupt):
            session.write(Interrupts())
        self.assertGreater(len(session), 0)


if __name__ == "__main__":
    unittest.main()
