/* Faults that are planted into the kernels of paged attention: barriers are left out, pages and rows are off by one, scales are
 * those of the group beside. */
#include <csignal>
#include <cstdio>
#include <sys/wait.h>
#include <unistd.h>

#include "planted.h"

namespace {

int      left_out_block = -1, left_out_warp = -1; /* numbers of the barriers of a thread that are left out */
unsigned block_arrivals[1024], warp_arrivals[1024];
bool     other_group;                             /* scales are those of the next group */

void planted_block(KVI_SITE_ONLY)
{
    if (static_cast<int>(block_arrivals[threadIdx.x]++) != left_out_block)
        kvi_sync_block(file, line);
}

void planted_warp(KVI_SITE_ONLY)
{
    if (static_cast<int>(warp_arrivals[threadIdx.x]++) != left_out_warp)
        kvi_sync_warp(file, line);
}

} // namespace

#define kvi_sync_block planted_block
#define kvi_sync_warp  planted_warp
#include "paged.cuh"
#undef kvi_sync_block
#undef kvi_sync_warp

namespace {

struct planted_q8 : paged_q8 {
    static float scale(const unsigned char *row, unsigned width, unsigned group)
    {
        return paged_q8::scale(row, width, other_group ? (group + 1) % (width / 32) : group);
    }
};

enum : unsigned {
    HEADS = 4,
    WIDTH = 64,
    PAGE_ROWS = 16,
    VISIBLE = KVI_PAGED_CHUNK + 76,
    PAGES = VISIBLE / (PAGE_ROWS - 1) + 2, /* enough for a fault's too */
    PAGE_OFF = 32,
    ROW = WIDTH / 32 * 34
};

/* Q8_0 rows whose scales differ by up to 8 from group to group; every page has room for one row more. */
struct world {
    floats                 q, sink, out, sums;
    std::vector<float2>    states;
    std::vector<uint8_t>   memory;
    std::vector<const uint8_t *> pages; /* more than there are */
    uint64_t               n_visible;
    paged_args             args;

    explicit world(bool apart)
        : q(HEADS * WIDTH), sink(HEADS), out(q.size()), sums(2 * q.size()), states(2 * HEADS), n_visible(VISIBLE), args()
    {
        const size_t page = (PAGE_OFF + (2 * PAGE_ROWS + 1) * ROW + 15) / 16 * 16;

        random_state = 5;
        random_floats(q, -1.0f, 2.0f);
        random_floats(sink, 0.0f, 1.0f);
        memory.resize(PAGES * page);
        for (size_t i = 0; i < memory.size(); i++) {
            const size_t at = (i % page - PAGE_OFF) % 34;
            memory[i] = static_cast<uint8_t>(i % page < PAGE_OFF || at > 1 ? random_bits() : at == 0 ? 0 : 0x18 + 4 * (random_bits() % 4));
        }
        for (unsigned i = 0; i < PAGES; i++)
            pages.push_back(memory.data() + i * page);
        args.q = q.data();
        args.out = out.data();
        args.pages = pages.data();
        args.n_visible = &n_visible;
        args.sink = sink.data();
        args.sums = sums.data();
        args.states = states.data();
        args.page_off = PAGE_OFF;
        args.max_visible = VISIBLE;
        args.n_chunks = apart ? 2 : 0;
        args.n_heads = args.ratio = HEADS;
        args.n_kv_heads = args.n_parts = 1;
        args.width = WIDTH;
        args.page_rows = PAGE_ROWS;
        args.row_bytes = ROW;
        args.scale = 0.05f;
    }
};

bool launch(int order, unsigned blocks, unsigned threads, size_t shared, const std::function<void()> &kernel)
{
    for (unsigned i = 0; i < 1024; i++)
        block_arrivals[i] = warp_arrivals[i] = 0;
    return planted_launch(order, blocks, threads, shared, kernel);
}

/* One block takes both chunks. False = a fault was reported. */
bool run_whole(int order, const std::function<void(paged_args &)> &change, floats &out)
{
    world w(false);
    bool  ran;

    change(w.args);
    ran = launch(order, 1, paged_shape<planted_q8, 128, 1>::THREADS, sizeof(paged_shared<planted_q8, 128, 1>),
                 [&] { paged_kernel<planted_q8, 128, 1>(w.args); });
    out = w.out;
    return ran;
}

/* A block a chunk, then the kernel that puts them together, which alone has the faults. */
bool run_apart(int order, floats &out)
{
    const int block = left_out_block;
    world     w(true);
    bool      ran;

    left_out_block = -1;
    ran = launch(order, 2, paged_shape<planted_q8, 128, 1>::THREADS, sizeof(paged_shared<planted_q8, 128, 1>),
                 [&] { paged_kernel<planted_q8, 128, 1>(w.args); });
    left_out_block = block;
    for (unsigned head = 0; head < HEADS && ran; head++) {
        paged_args a = w.args; /* a head at a time: arrivals are counted by block */

        ran = launch(order, HEADS, PAGED_COMBINE_THREADS, sizeof(paged_combine_shared), [&] {
            if (blockIdx.x == head)
                paged_combine_kernel(a);
        });
    }
    out = w.out;
    return ran;
}

void nothing(paged_args &) {}

typedef std::function<bool(int order, floats &out)> kernel_run;

void check_barrier(const char *what, int number, const floats &right, const kernel_run &run)
{
    floats out;
    bool   found = false;

    for (int order = 0; order < 3 && !found; order++) { /* in a process of its own: rows may be read where there is no memory */
        const pid_t child = fork();
        int         status = 0;

        assert_true(child >= 0);
        if (child == 0) {
            for (int fatal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
                std::signal(fatal, SIG_DFL); /* CMocka's would go on with the tests */
            if (!freopen("/dev/null", "w", stderr))
                _exit(2);
            _exit(run(order, out) && same(out, right) ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        found = status != 0;
    }
    left_out_block = left_out_warp = -1;
    if (!found)
        fail_msg("nobody misses barrier %d of %s", number, what);
}

void test_barriers(void **)
{
    const kernel_run whole = [](int order, floats &out) { return run_whole(order, nothing, out); };
    floats           right, out;

    assert_true(whole(0, right));
    for (int order = 1; order < 3; order++) {
        assert_true(whole(order, out));
        assert_true(same(out, right));
    }
    for (int order = 0; order < 3; order++) { /* both kernels give the same bits */
        assert_true(run_apart(order, out));
        assert_true(same(out, right));
    }
    for (int barrier = 0; barrier < 6; barrier++) { /* three a chunk */
        left_out_block = barrier;
        check_barrier("a block", barrier, right, whole);
    }
    for (int barrier = 0; barrier < 16; barrier++) { /* steps of the first chunk; behind them products have waited for all lanes */
        left_out_warp = barrier;
        check_barrier("a warp", barrier, right, whole);
    }
    left_out_block = 0;
    check_barrier("the merging kernel", 0, right, run_apart);
}

void test_places(void **)
{
    static const struct {
        const char *what;
        void      (*change)(paged_args &);
    } faults[] = {
        {"the next page", [](paged_args &a) { a.pages++; }},
        {"the next row", [](paged_args &a) { a.page_off += ROW; }},
        {"pages of a row less", [](paged_args &a) { a.page_rows--; }},
        {"the scales of the group beside", [](paged_args &) { other_group = true; }},
    };
    floats right, out;

    assert_true(run_whole(0, nothing, right));
    for (const auto &f : faults) {
        const bool ran = run_whole(0, f.change, out);

        other_group = false;
        if (ran && distance(right, out) < 0.02) /* rounding moves values by some 2^-16 */
            fail_msg("%s: nobody sees it (%g)", f.what, distance(right, out));
    }
}

const CMUnitTest tests[] = {cmocka_unit_test(test_barriers), cmocka_unit_test(test_places)};

} // namespace

int main()
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
