/* Faults that are planted into the kernel of sparse attention for Hopper: waits, barriers and fences are left out one by one,
 * descriptors, fragments and places in shared memory are wrong by a little. */
#include "planted.h"

#include "attend.cuh"
#include "device_wgmma.cuh"

namespace {

enum kind {
    NO_KIND,
    MEMORY_BARRIER,
    BLOCK_BARRIER,
    QUERY_BARRIER,
    WARP_BARRIER,
    OPERAND_FENCE,
    REGISTER_FENCE,
    SUMS_WAIT,
    N_KINDS
};
enum place { NOWHERE, SWIZZLE, CHANNELS, ROWS, FAR, NEXT, FRAGMENT, EXPECTED };
enum : unsigned { ALL = 1000, MAX_THREADS = 512 };

struct fault {
    kind     what;  /* is left out */
    unsigned nth;   /* of a thread's */
    bool     keys;  /* by warpgroup 0, else by the others; the block's barrier by all */
    place    where;
};
fault    planted;
unsigned met[N_KINDS][MAX_THREADS];

bool left_out(kind what)
{
    const unsigned thread = threadIdx.x, n = met[what][thread]++;

    return planted.what == what && (planted.nth == n || planted.nth == ALL) &&
           (what == BLOCK_BARRIER || (thread < KVI_WARPGROUP) == planted.keys);
}

void planted_mbar_wait(uint64_t *bar, unsigned parity, KVI_SITE)
{
    /* who does not wait for keys is found where they come late */
    const bool late = planted.what == MEMORY_BARRIER && !planted.keys && threadIdx.x < KVI_WARPGROUP;
    for (unsigned i = 0; late && i < 40; i++)
        kvi_sync_warp(file, line);
    if (!left_out(MEMORY_BARRIER))
        kvi_mbar_wait(bar, parity, file, line);
}
void planted_sync_block(KVI_SITE)
{
    if (!left_out(BLOCK_BARRIER))
        kvi_sync_block(file, line);
}
void planted_sync_some(unsigned id, unsigned threads, KVI_SITE)
{
    if (!left_out(QUERY_BARRIER))
        kvi_sync_some(id, threads, file, line);
}
void planted_sync_warp(KVI_SITE)
{
    if (!left_out(WARP_BARRIER))
        kvi_sync_warp(file, line);
}
void planted_operand_fence()
{
    if (!left_out(OPERAND_FENCE))
        kvi_operand_fence();
}
template <class... A> void planted_wgmma_fence(A &...a)
{
    if (!left_out(REGISTER_FENCE))
        kvi_wgmma_fence(a...);
}
template <unsigned N> void planted_wgmma_wait(float (&d)[N])
{
    if (!left_out(SUMS_WAIT))
        kvi_wgmma_wait(d);
}
unsigned planted_swizzle(unsigned row, unsigned chunk)
{
    return planted.where == SWIZZLE ? row * KVI_ATOM_ROW + (chunk ^ (row + 1) % 8) * 16 : kvi_swizzle(row, chunk);
}
uint64_t planted_operand_k(const uint8_t *at)
{
    return kvi_operand(at + (planted.where == CHANNELS ? 32 : 0), 16, planted.where == NEXT ? 2 * KVI_ATOM : +KVI_ATOM);
}
uint64_t planted_operand_n(const uint8_t *at, unsigned far)
{
    return kvi_operand_n(at + (planted.where == ROWS ? +KVI_ATOM : 0u), planted.where == FAR ? 2 * far : far);
}
void planted_wgmma_256(float (&d)[128], const uint32_t (&a)[4], uint64_t b, KVI_SITE)
{
    const uint32_t other[4] = {a[0], a[2], a[1], a[3]};

    kvi_wgmma_256(d, planted.where == FRAGMENT ? other : a, b, file, line);
}
void planted_mbar_arrive_expect(uint64_t *bar, unsigned bytes)
{
    kvi_mbar_arrive_expect(bar, planted.where == EXPECTED ? bytes - bytes / 2 : bytes);
}

} // namespace

#define kvi_mbar_wait          planted_mbar_wait
#define kvi_sync_block         planted_sync_block
#define kvi_sync_some          planted_sync_some
#define kvi_sync_warp          planted_sync_warp
#define kvi_operand_fence      planted_operand_fence
#define kvi_wgmma_fence        planted_wgmma_fence
#define kvi_wgmma_wait         planted_wgmma_wait
#define kvi_swizzle            planted_swizzle
#define kvi_operand_k          planted_operand_k
#define kvi_operand_n          planted_operand_n
#define kvi_wgmma_256          planted_wgmma_256
#define kvi_mbar_arrive_expect planted_mbar_arrive_expect
#include "attend_sm90.cuh"
#undef kvi_mbar_wait
#undef kvi_sync_block
#undef kvi_sync_some
#undef kvi_sync_warp
#undef kvi_operand_fence
#undef kvi_wgmma_fence
#undef kvi_wgmma_wait
#undef kvi_swizzle
#undef kvi_operand_k
#undef kvi_operand_n
#undef kvi_wgmma_256
#undef kvi_mbar_arrive_expect

namespace {

enum : unsigned {
    HEADS = 40,
    WINDOW = 30,
    SELECTED = 150, /* three tiles, the last of which is not full */
    POS = 100,
    CHUNK_POS = POS - WINDOW + 1,
    BLOCKS = 12,
    BLOCK_ROWS = 8
};

typedef std::vector<uint8_t> bytes;

/* Rows of 512 channels: no NaN, scales that differ by up to 8 from group to group. */
bytes rows_of(size_t n, bool fp8)
{
    const unsigned values = fp8 ? ATTEND_WIDTH : ATTEND_WIDTH / 2, all = fp8 ? ATTEND_FP8 : ATTEND_FP4;
    bytes          out(n * all);

    for (size_t i = 0; i < out.size(); i++)
        out[i] = static_cast<uint8_t>(i % all < values ? random_bits() & 0xbbu
                                      : fp8            ? 127 + random_bits() % 4
                                                       : 0x20 + random_bits() % 24);
    return out;
}

struct world {
    floats                 q, sink, out;
    bytes                  chunk;
    std::vector<bytes>     memory;
    std::vector<uint8_t *> parts;
    std::vector<int32_t>   ids;
    uint64_t               pos;
    attend_args            args;

    world() : q(HEADS * ATTEND_WIDTH), sink(HEADS), out(q.size()), ids(SELECTED), pos(POS), args()
    {
        random_state = 5;
        random_floats(q, -1.0f, 2.0f);
        random_floats(sink, 0.0f, 1.0f);
        chunk = rows_of(WINDOW, true);
        memory.reserve(BLOCKS);
        for (unsigned i = 0; i < BLOCKS; i++) {
            memory.push_back(rows_of(BLOCK_ROWS, false));
            parts.push_back(memory.back().data());
        }
        for (unsigned i = 0; i < SELECTED; i++)
            ids[i] = i % 9 == 8 ? -1 : static_cast<int32_t>(7 * i % (BLOCKS * BLOCK_ROWS));
        args.q = q.data();
        args.out = out.data();
        args.pos = &pos;
        args.chunk = chunk.data();
        args.sink = sink.data();
        args.ids = ids.data();
        args.main_parts = parts.data();
        args.chunk_pos = CHUNK_POS;
        args.n_heads = HEADS;
        args.n_groups = args.n_splits = 1;
        args.width = ATTEND_WIDTH;
        args.n_window = WINDOW;
        args.row_bytes = ATTEND_FP8;
        args.k = SELECTED;
        args.rows_per_block = BLOCK_ROWS;
        args.main_row_bytes = ATTEND_FP4;
        args.format = KVCSA_FORMAT_FP4_E4M3_G16;
        args.scale = 0.01f;
    }
};

/* False = a fault was reported. */
bool run(int order, const fault &f, floats &out)
{
    world w;
    bool  ran;

    std::memset(met, 0, sizeof met);
    planted = f;
    ran = planted_launch(order, 1, SM90_THREADS, sizeof(attend_sm90_shared), [&] { attend_sm90_kernel(w.args); });
    planted = fault();
    out = w.out;
    return ran;
}

floats right;

bool is_found(const fault &f)
{
    floats out;
    bool   found = false;

    for (int order = 0; order < 3 && !found; order++)
        found = !run(order, f, out) || !same(out, right);
    return found;
}

/* What a thread meets: warpgroup 0 waits for a free tile and four pieces of rows in each of three tiles; both tiles are free at
 * first. The others wait for scores and for the output in turn; that for the output of a tile that is not the last hides behind
 * the next one, as the barrier of a warp behind wgmma does behind that instruction. */
void test_left_out(void **)
{
    static const struct {
        const char *name;
        kind        what;
        bool        keys;
        unsigned    n;
    } faults[] = {
        {"memory barrier of the keys", MEMORY_BARRIER, true, 15},
        {"memory barrier of the rest", MEMORY_BARRIER, false, 3},
        {"barrier of the block", BLOCK_BARRIER, true, 1},
        {"barrier of the queries", QUERY_BARRIER, false, 1},
        {"barriers of the warps of the keys", WARP_BARRIER, true, ALL},
        {"fence of the keys", OPERAND_FENCE, true, 3},
        {"fence of the queries", OPERAND_FENCE, false, 1},
        {"fence of registers", REGISTER_FENCE, false, 6},
        {"wait for sums", SUMS_WAIT, false, 6},
    };
    floats out;

    assert_true(run(0, fault(), right));
    for (int order = 1; order < 3; order++) {
        assert_true(run(order, fault(), out));
        assert_true(same(out, right));
    }
    for (const auto &f : faults)
        for (unsigned i = 0; i < f.n; i += f.n == ALL ? +ALL : 1u) {
            if ((f.what == MEMORY_BARRIER && f.keys && (i == 0 || i == 5)) || (f.what == SUMS_WAIT && (i == 1 || i == 3)))
                continue;
            if (!is_found({f.what, f.n == ALL ? +ALL : i, f.keys, NOWHERE}))
                fail_msg("nobody misses %s number %u", f.name, i);
        }
}

void test_places(void **)
{
    static const struct {
        const char *name;
        place       where;
    } faults[] = {
        {"chunks change places by another row", SWIZZLE},
        {"channels begin a step later", CHANNELS},
        {"values begin eight rows later", ROWS},
        {"the next 64 channels are twice as far", FAR},
        {"the next 8 rows are twice as far", NEXT},
        {"registers of p change places", FRAGMENT},
        {"half of the bytes are not expected", EXPECTED},
    };
    floats out;

    assert_true(run(0, fault(), right));
    for (const auto &f : faults)
        if (run(0, {NO_KIND, 0, false, f.where}, out) && distance(right, out) < 0.02)
            fail_msg("%s: nobody sees it (%g)", f.name, distance(right, out));
}

const CMUnitTest tests[] = {cmocka_unit_test(test_left_out), cmocka_unit_test(test_places)};

} // namespace

int main()
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
