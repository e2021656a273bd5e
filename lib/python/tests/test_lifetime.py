"""Handles: any order, any thread, twice, at exit, after fork(2), inside callbacks."""

import gc
import itertools
import threading
import unittest
import weakref

from support import Case, CountingAllocator, TEXT, TINY, kvcsa, run_python


class Lifetime(Case):
    def test_close_in_every_order(self):
        for order in itertools.permutations(range(4)):
            memory = CountingAllocator()
            model = kvcsa.Model(TINY, allocator=memory)
            pool = kvcsa.Pool(n_threads=1, allocator=memory)
            session = pool.session(model)
            handles = [model, pool, session, model.text_stream(["stop"])]
            session.append(model.tokenize(TEXT))
            session.step()
            for i in order:
                handles[i].close()
                handles[i].close()
                self.assertTrue(handles[i].closed)
            self.assertEqual((memory.balance, memory.wrong), (0, []), order)

    def test_children_keep_their_parents(self):
        memory = CountingAllocator()
        # The pool's own memory knows nothing of the model's; each must outlive what C still holds.
        session = kvcsa.Pool(n_threads=1).session(kvcsa.Model(TINY, allocator=memory))
        gc.collect()
        session.append(session.model.tokenize(TEXT))
        text = "".join(session.stream(8))
        self.assertEqual(text, "".join(self.session().stream(8)))
        self.assertGreater(memory.balance, 0)
        del session
        gc.collect()
        self.assertEqual((memory.balance, memory.wrong), (0, []))

    def test_a_pool_keeps_what_its_models_call(self):
        """C may keep a model as long as the pool; then its memory is asked for long after Python has let go of it."""
        memory = CountingAllocator()
        out, wrong = memory.out, memory.wrong
        model = kvcsa.Model(TINY, allocator=memory)
        tokens = self.long_tokens(300)
        with self.pool.session(model) as session:
            session.append(tokens)
            session.step()
        gone = weakref.ref(model)
        del model, session, memory
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual(len([hook for hook in self.pool._hooks if hook is not self.memory]), 1)
        self.pool.prefix_forget()
        self.pool.close()
        self.assertEqual((out, wrong), ({}, []))

    def test_cycles_are_collected(self):
        for _ in range(5):
            memory = CountingAllocator()
            model, pool = kvcsa.Model(TINY, allocator=memory), kvcsa.Pool(n_threads=1, allocator=memory)
            ring = [model, pool, pool.session(model), model.text_stream()]
            for handle in ring:
                handle.ring = ring
            del model, pool, ring, handle
            gc.collect()
            self.assertEqual((memory.balance, memory.wrong), (0, []))

    def test_closed_handles_say_so(self):
        session = self.session()
        session.close()
        for call in (session.step, session.stats, session.sample, session.tokens, session.cancel, session.fork,
                     lambda: len(session), lambda: session.append([1]), lambda: self.pool.step([session]),
                     lambda: list(session.generate(1))):
            with self.assertRaisesRegex(kvcsa.ArgError, "Session is closed"):
                call()

    def test_close_while_in_use(self):
        session = self.session("", reuse=kvcsa.Reuse.NONE)
        session.append(self.long_tokens(2000))
        seen = []

        def progress(_session, _done, _queued):
            if not seen:
                for handle in (session, self.pool):
                    with self.assertRaises(kvcsa.BusyError):
                        handle.close()
                other = threading.Thread(target=lambda: seen.append(self.second_caller(session)))
                other.start()
                other.join()

        session.step(progress=progress)
        self.assertEqual(seen, ["BusyError"])
        self.assertEqual(len(session), 2000)

    @staticmethod
    def second_caller(session):
        try:
            session.step()
        except kvcsa.Error as error:
            return type(error).__name__
        return "no error"

    def test_garbage_inside_a_callback_waits(self):
        """The trace is called while the pool is locked: a session that dies there must not be released there."""
        spare = []

        def trace(event):
            if event.kind == kvcsa.Trace.PUBLISH:
                spare.clear()
                gc.collect()

        with kvcsa.Pool(n_threads=1, trace=trace) as pool:
            worker = pool.session(self.model)
            self.addCleanup(worker.close)
            spare.append(pool.session(self.model))
            spare[0].append(self.model.tokenize(TEXT))
            spare[0].step()
            self.assertEqual(pool.stats().n_sessions, 2)
            worker.append(self.long_tokens(400))
            worker.step()
            self.assertEqual(spare, [])
            self.assertEqual(pool.stats().n_sessions, 1)

    def test_threads_share_a_pool(self):
        """What the threads say is what one alone says; a step lets the others run."""
        prompts = [TEXT[i:] for i in range(4)]
        want = ["".join(self.session(prompt).stream(24)) for prompt in prompts]
        got = [None] * len(prompts)

        def work(i):
            with self.pool.session(self.model) as session:
                session.append(self.model.tokenize(prompts[i]))
                got[i] = "".join(session.stream(24))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(got, want)
        self.pool.check()

    def test_one_step_for_many(self):
        sessions = [self.session("") for _ in range(3)]
        for i, session in enumerate(sessions):
            session.append(self.model.tokenize(TEXT[i:]))
        results = self.pool.step(sessions)
        self.assertEqual([result.n_computed for result in results], [len(session) for session in sessions])
        self.assertEqual([result.error for result in results], [None] * 3)


class Exit(unittest.TestCase):
    """Programs that end in every way; each must end with status 0 and say nothing on stderr."""

    SETUP = """
import ctypes, os, threading, time
n = [0]
libc = ctypes.CDLL(None)
libc.aligned_alloc.restype = ctypes.c_void_p
libc.aligned_alloc.argtypes = [ctypes.c_size_t] * 2
libc.free.argtypes = [ctypes.c_void_p]
def alloc(size, align):
    n[0] += 1
    return libc.aligned_alloc(align, (size + align - 1) // align * align)
def free(address, size, align):
    n[0] -= 1
    libc.free(address)
def make():
    model = kvcsa.Model(TINY, allocator=kvcsa.Allocator(alloc, free), log=lambda level, text: None)
    pool = kvcsa.Pool(allocator=kvcsa.Allocator(alloc, free), log=lambda level, text: None, trace=lambda event: None)
    session = pool.session(model)
    session.append(model.tokenize("In the beginning " * 40))
    session.step()
    return model, pool, session
"""

    def good(self, code, out):
        made = run_python(self.SETUP + code)
        self.assertEqual((made.returncode, made.stdout, made.stderr), (0, out, ""), code)

    def test_globals_are_left_to_the_end(self):
        for names in ("a_model, b_pool, c_session", "c_model, b_pool, a_session"):
            self.good(f"{names} = make()\nprint(len({names.split(', ')[2]}) > 0)", "True\n")

    def test_nothing_is_left(self):
        """What is registered before the package is there runs after what it registers for the end of the program."""
        before = "import atexit\nn = [0]\natexit.register(lambda: print('left:', n[0]))\n"
        made = run_python(self.SETUP.replace("n = [0]\n", "") + "kept = make()\nring = [kept]\nring.append(ring)\nprint(n[0] > 0)",
                          before=before)
        self.assertEqual((made.returncode, made.stdout, made.stderr), (0, "True\nleft: 0\n", ""))

    def test_a_generator_is_left_open(self):
        self.good("model, pool, session = make()\nstream = session.stream(100)\nprint(len(next(stream)) > 0)", "True\n")

    def test_a_daemon_thread_is_in_a_step(self):
        self.good("""
model, pool, session = make()
session.append(model.tokenize("word " * 3000), reuse=kvcsa.Reuse.NONE)
began = threading.Event()
threading.Thread(target=lambda: session.step(progress=lambda *_: began.set()), daemon=True).start()
began.wait()
print("ends")
""", "ends\n")

    def test_after_fork(self):
        self.good("""
import warnings
warnings.simplefilter("ignore")  # Python warns of fork(2) with threads
model, pool, session = make()
child = os.fork()
if child == 0:
    try:
        session.stats()
    except kvcsa.ArgError as error:
        print("fork(2)" in str(error), flush=True)
    for handle in (session, pool, model):
        handle.close()
    mine = make()
    print(len(mine[2]) == 0, flush=True)
    raise SystemExit(0)
print(os.waitpid(child, 0)[1], len(session) > 0)
""", "True\nFalse\n0 True\n")

    def test_library_that_is_not_one(self):
        """Another one than the first, none, one of somebody else's, one that is too old."""
        made = run_python("""
def load(path, words):
    try:
        kvcsa.load(path)
    except ImportError as error:  # LibraryError is one
        print(type(error).__name__, words in str(error))
ours = kvcsa.library_path()
load("/nowhere/libkvcsa.so", "loaded already")
kvcsa.library._library = None
load("/nowhere/libkvcsa.so", "cannot be loaded: /nowhere/libkvcsa.so")
load([line.split()[-1] for line in open("/proc/self/maps") if "libc.so" in line or "libc-" in line][0], "is not libkvcsa")
kvcsa._abi.KVCSA_VERSION_NUMBER += 1
load(ours, "this package needs")
kvcsa._abi.KVCSA_VERSION_NUMBER -= 1
kvcsa._abi.FUNCTIONS["kvcsa_of_tomorrow"] = (None, [])
load(ours, "it lacks kvcsa_of_tomorrow")
""")
        self.assertEqual((made.returncode, made.stdout, made.stderr), (0, "LibraryError True\n" * 5, ""))


if __name__ == "__main__":
    unittest.main()
