/* Faults that are planted into the kernel of sparse attention: each barrier is left out once, pages, blocks and rows are off by
 * one, scales are those of the group beside. */
#include "planted.h"

#include "device_tile.cuh"

namespace {

int      left_out = -1;  /* number of the barrier of a thread that is left out */
unsigned arrivals[1024]; /* of each thread */
bool     other_group;    /* scales are those of the next group */

void planted_barrier(KVI_SITE_ONLY)
{
    if (static_cast<int>(arrivals[threadIdx.x]++) != left_out)
        kvi_sync_block(file, line);
}

/* The row with its scales one group further. */
template <unsigned VALUES, unsigned SCALES> struct alignas(16) moved {
    uint8_t bytes[VALUES + SCALES];
    explicit moved(const uint8_t *row)
    {
        std::memcpy(bytes, row, VALUES);
        for (unsigned g = 0; g < SCALES; g++)
            bytes[VALUES + g] = row[VALUES + (g + 1) % SCALES];
    }
};

template <unsigned WIDTH> uint4 planted_fp4(const uint8_t *row, unsigned i)
{
    return other_group ? kvi_tile_fp4<WIDTH>(moved<WIDTH / 2, WIDTH / 16>(row).bytes, i) : kvi_tile_fp4<WIDTH>(row, i);
}

template <unsigned WIDTH> uint4 planted_fp8(const uint8_t *row, unsigned i)
{
    return other_group ? kvi_tile_fp8<WIDTH>(moved<WIDTH, WIDTH / 32>(row).bytes, i) : kvi_tile_fp8<WIDTH>(row, i);
}

} // namespace

#define kvi_sync_block planted_barrier
#define kvi_tile_fp4   planted_fp4
#define kvi_tile_fp8   planted_fp8
#include "attend.cuh"
#undef kvi_sync_block

namespace {

enum : unsigned {
    HEADS = 16,
    WINDOW = 40,
    SELECTED = 40, /* three tiles, the last of which is not full */
    PAGES = 3,
    PAGE_ROWS = 16,
    BLOCKS = 12,
    BLOCK_ROWS = 8,
    POS = 100,
    CHUNK_POS = 90
};

typedef std::vector<uint8_t> bytes;

/* Rows of 512 channels: no NaN, scales that differ by up to 8 from group to group. */
bytes rows_of(size_t n, bool fp8)
{
    const unsigned values = fp8 ? ATTEND_WIDTH : ATTEND_WIDTH / 2, all = fp8 ? ATTEND_FP8 : ATTEND_FP4;
    bytes          out(n * all);

    for (size_t i = 0; i < out.size(); i++)
        out[i] = static_cast<uint8_t>(i % all < values ? random_bits() & 0xbbu : fp8 ? 127 + random_bits() % 4 : 0x20 + random_bits() % 24);
    return out;
}

kvi_slices tables; /* of the world that was made last */

struct world {
    floats                 q, sink, out;
    bytes                  chunk;
    std::vector<bytes>     memory;
    std::vector<uint8_t *> pages, parts; /* one more of each than there are */
    std::vector<int32_t>   ids;
    uint64_t               pos;
    kvi_slice              slices[3]; /* that in the middle is the world's own */
    kvi_slice_rows         rows[3];
    attend_args            args;

    world() : q(HEADS * ATTEND_WIDTH), sink(HEADS), out(q.size()), ids(SELECTED), pos(POS), args()
    {
        random_state = 5;
        random_floats(q, -1.0f, 2.0f);
        random_floats(sink, 0.0f, 1.0f);
        chunk = rows_of(POS - CHUNK_POS + 4, true);
        memory.reserve(PAGES + BLOCKS + 2);
        for (unsigned i = 0; i <= PAGES; i++) {
            memory.push_back(rows_of(PAGE_ROWS + 1, true));
            pages.push_back(memory.back().data());
        }
        for (unsigned i = 0; i <= BLOCKS; i++) {
            memory.push_back(rows_of(BLOCK_ROWS + 1, false));
            parts.push_back(memory.back().data());
        }
        for (unsigned i = 0; i < SELECTED; i++)
            ids[i] = i % 9 == 8 ? -1 : static_cast<int32_t>(2 * i + i % 2);
        args.q = q.data();
        args.out = out.data();
        args.pos = &pos;
        args.pages = pages.data();
        args.chunk = chunk.data() + ATTEND_FP8;
        args.sink = sink.data();
        args.ids = ids.data();
        args.main_parts = parts.data();
        args.chunk_pos = CHUNK_POS;
        args.n_heads = HEADS;
        args.n_groups = args.n_splits = 1;
        args.width = ATTEND_WIDTH;
        args.n_window = WINDOW;
        args.page_rows = PAGE_ROWS;
        args.n_pages = PAGES;
        args.row_bytes = ATTEND_FP8;
        args.k = SELECTED;
        args.rows_per_block = BLOCK_ROWS;
        args.main_row_bytes = ATTEND_FP4;
        args.format = KVCSA_FORMAT_FP4_E4M3_G16;
        args.scale = 0.01f;
        for (unsigned i = 0; i < 3; i++) {
            slices[i] = {nullptr, parts.data() + (i != 1), pages.data() + (i != 1), nullptr};
            rows[i] = {CHUNK_POS, i, i == 1 ? 0u : POS + 2 - WINDOW};
        }
        tables = {slices, rows, 1};
    }
};

/* False = a fault was reported. */
bool run(int order, int barrier, const std::function<void(attend_args &)> &change, floats &out)
{
    typedef attend_shape<HEADS, 32, true> shape;
    world w;
    bool  ran;

    change(w.args);
    for (unsigned &n : arrivals)
        n = 0;
    left_out = barrier;
    ran = planted_launch(order, 1, ATTEND_THREADS, sizeof(shape::shared),
                         [&] { attend_bf16_f32_kernel<HEADS, 32, true>(w.args); });
    left_out = -1;
    out = w.out;
    return ran;
}

void nothing(attend_args &) {}

/* Of the 15 barriers that a thread meets: one in front, four a tile, two at the end. */
void test_barriers(void **)
{
    floats right, out;

    assert_true(run(0, -1, nothing, right));
    for (int order = 1; order < 3; order++) {
        assert_true(run(order, -1, nothing, out));
        assert_true(same(out, right));
    }
    for (int barrier = 0; barrier < 15; barrier++) {
        bool found = false;

        for (int order = 0; order < 3 && !found; order++)
            found = !run(order, barrier, nothing, out) || !same(out, right);
        if (!found)
            fail_msg("nobody misses barrier %d", barrier);
    }
}

void test_places(void **)
{
    static const struct {
        const char *what;
        void      (*change)(attend_args &);
    } faults[] = {
        {"the next page", [](attend_args &a) { a.pages++; }},
        {"the next row of a page", [](attend_args &a) { a.page_off += ATTEND_FP8; }},
        {"the next row of the chunk", [](attend_args &a) { a.chunk += ATTEND_FP8; }},
        {"a chunk that begins a row later", [](attend_args &a) { a.chunk_pos++; }},
        {"a window that is a row shorter", [](attend_args &a) { a.floor = POS + 2 - WINDOW; }},
        {"the next block", [](attend_args &a) { a.main_parts++; }},
        {"the next entry", [](attend_args &a) { a.main_off += ATTEND_FP4; }},
        {"blocks that are an entry shorter", [](attend_args &a) { a.rows_per_block--; }},
        {"the scales of the group beside", [](attend_args &) { other_group = true; }},
    };
    floats right, out;

    assert_true(run(0, -1, nothing, right));
    for (const auto &f : faults) {
        assert_true(run(0, -1, f.change, out));
        other_group = false;
        if (distance(right, out) < 0.02) /* rounding to bf16 moves values by some 2^-9 */
            fail_msg("%s: nobody sees it (%g)", f.what, distance(right, out));
    }
}

/* The world as the second of three timelines: what stands in the fields is another's. */
void among_others(attend_args &a)
{
    a.of = tables;
    a.first_row = 1;
    a.chunk -= ATTEND_FP8;
    a.pages = nullptr;
    a.main_parts = nullptr;
    a.chunk_pos = a.floor = UINT64_MAX;
}

void test_timelines(void **)
{
    static const struct {
        const char *what;
        void      (*change)(attend_args &);
    } faults[] = {
        {"the timeline in front", [](attend_args &a) { a.first_row--; }},
        {"the timeline behind", [](attend_args &a) { a.first_row++; }},
        {"timelines of a row more", [](attend_args &a) { a.of.each++; }},
        {"rows of the timeline behind", [](attend_args &a) { a.of.rows++; }},
        {"pages and blocks of the timeline behind", [](attend_args &a) { a.of.slices++; }},
    };
    floats right, out;

    assert_true(run(0, -1, nothing, right));
    assert_true(run(0, -1, among_others, out));
    assert_true(same(out, right));
    for (const auto &f : faults) {
        const auto change = [&](attend_args &a) {
            among_others(a);
            f.change(a);
        };
        assert_true(run(0, -1, change, out));
        if (distance(right, out) < 0.02)
            fail_msg("%s: nobody sees it (%g)", f.what, distance(right, out));
    }
}

const CMUnitTest tests[] = {cmocka_unit_test(test_barriers), cmocka_unit_test(test_places), cmocka_unit_test(test_timelines)};

} // namespace

int main()
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
