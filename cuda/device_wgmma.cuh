/* Matrix instructions of a warpgroup (wgmma, sm_90a): 128 threads, four warps the first of which has a number divisible by four,
 * multiply 64 x 16 by 16 x N bf16 elements and add in fp32, asynchronously.
 *
 * Operands in shared memory stand in atoms of 8 rows x 128 bytes that begin at multiples of 1024; the eight chunks of 16 bytes of
 * row r change places by r (kvi_swizzle). The same bytes serve as an operand whose rows are m or n and whose columns are k
 * (kvi_operand_k), and as one whose rows are k and whose columns are n (kvi_operand_n).
 *
 * The instructions read by another proxy than stores write: kvi_operand_put, then kvi_operand_fence in the thread that wrote,
 * then a barrier. Registers that an instruction reads or adds to are final at kvi_wgmma_fence; its sums are there after
 * kvi_wgmma_wait. The emulation is strict in this: it decodes descriptors, makes sums at the wait and leaves NaN until then, and
 * faults where an operand was written without a fence, or where kvi_wgmma_fence is missing.
 *
 * Fragments, with g = lane / 4, t = lane % 4 and row = 16 x (warp % 4) + g: d[4j], d[4j + 1] are columns 8j + 2t, 8j + 2t + 1
 * of row, d[4j + 2], d[4j + 3] of row + 8; a[0] columns 2t, 2t + 1 of row, a[1] of row + 8, a[2] and a[3] the same at columns
 * + 8. So sums of columns 16s .. 16s + 15 become the a of step s where they stand. */
#ifndef KVI_DEVICE_WGMMA_CUH
#define KVI_DEVICE_WGMMA_CUH

#include "device_bulk.cuh"

#ifdef KVI_CUDA_EMULATED
#include <vector>
#endif

enum : unsigned { KVI_WARPGROUP = 128, KVI_ATOM_ROW = 128, KVI_ATOM = 1024 };

/* Offset of chunk `chunk` (0 .. 7) of row `row`. */
KVI_DEV unsigned kvi_swizzle(unsigned row, unsigned chunk) { return row * KVI_ATOM_ROW + (chunk ^ row % 8) * 16; }

/* ---- what the emulation knows ---- */

#ifdef KVI_CUDA_EMULATED
struct kvi_wgmma_op {
    float   *d;               /* array of the thread */
    unsigned columns;
    bool     add, a_is_here;
    float    a[2][16];        /* of row and row + 8, if it is */
    uint64_t a_at, b_at;      /* descriptors */
    bool     b_by_k;          /* rows of b are k */
};

struct kvi_wgmma_sums {       /* of an array that holds NaN until they are made */
    float             *d;
    std::vector<float> now;
};

struct kvi_wgmma_thread {
    bool                                   fenced = false; /* since the last wait */
    std::vector<unsigned>                  written;        /* chunks, since the last kvi_operand_fence */
    std::vector<kvi_wgmma_op>              open;
    std::vector<std::vector<kvi_wgmma_op>> groups;         /* committed, oldest first */
    std::vector<kvi_wgmma_sums>            sums;
};

struct kvi_wgmma_block {
    uint64_t                      launch = 0;
    unsigned                      block = 0;
    std::vector<kvi_wgmma_thread> threads;
    std::vector<unsigned>         dirty; /* of each chunk of shared memory: stores to it with no fence behind */
};

static inline kvi_wgmma_block &kvi_wgmma_state()
{
    static thread_local kvi_wgmma_block b;

    if (b.launch != kvi_emu_launches() || b.block != blockIdx.x || b.threads.empty()) {
        b = kvi_wgmma_block();
        b.launch = kvi_emu_launches();
        b.block = blockIdx.x;
        b.threads.resize(blockDim.x);
        b.dirty.resize(256 * 1024 / 16);
    }
    return b;
}

static inline kvi_wgmma_thread &kvi_wgmma_self() { return kvi_wgmma_state().threads[threadIdx.x]; }

static inline unsigned kvi_emu_offset(const void *p)
{
    return static_cast<unsigned>(static_cast<const char *>(p) - static_cast<const char *>(kvi_emu::self().shared));
}

/* Element of an operand: i counts rows of a, columns of b. */
static inline float kvi_wgmma_element(const kvi_wgmma_block &state, uint64_t at, bool by_k, unsigned i, unsigned k)
{
    const unsigned start = static_cast<unsigned>(at & 0x3fffu) << 4, far = static_cast<unsigned>(at >> 16 & 0x3fffu) << 4,
                   next = static_cast<unsigned>(at >> 32 & 0x3fffu) << 4;
    unsigned       to = by_k ? start + i / 64 * far + i % 64 * 2 + k / 8 * next + k % 8 * KVI_ATOM_ROW
                             : start + i / 8 * next + i % 8 * KVI_ATOM_ROW + k * 2;
    uint16_t       x;

    to ^= (to >> 7 & 7u) << 4;
    if (at >> 62 != 1)
        kvi_emu::fault({"wgmma", 0}, "a descriptor of another swizzle");
    if (state.dirty[to / 16])
        kvi_emu::fault({"wgmma", 0}, "an operand at %u was written with no fence behind", to);
    std::memcpy(&x, static_cast<const char *>(kvi_emu::self().shared) + to, sizeof x);
    return kvi_of_bf16(x);
}

static inline void kvi_wgmma_make(const kvi_wgmma_op &op, float *d)
{
    const kvi_wgmma_block &state = kvi_wgmma_state();
    const unsigned         t = kvi_lane() % 4, row = kvi_warp() % 4 * 16 + kvi_lane() / 4;
    float                  a[2][16];

    for (unsigned r = 0; r < 2; r++)
        for (unsigned k = 0; k < 16; k++)
            a[r][k] = op.a_is_here ? op.a[r][k] : kvi_wgmma_element(state, op.a_at, false, row + 8 * r, k);
    for (unsigned i = 0; i < op.columns / 2; i++) {
        float sum = op.add ? d[i] : 0.0f;
        for (unsigned k = 0; k < 16; k++)
            sum += a[i / 2 % 2][k] * kvi_wgmma_element(state, op.b_at, op.b_by_k, i / 4 * 8 + 2 * t + i % 2, k);
        d[i] = sum;
    }
}

static inline void kvi_wgmma_later(const kvi_wgmma_op &op, kvi_emu::site at)
{
    kvi_wgmma_thread &me = kvi_wgmma_self();

    if (!me.fenced)
        kvi_emu::fault(at, "a matrix instruction without kvi_wgmma_fence");
    me.open.push_back(op);
    for (const kvi_wgmma_sums &s : me.sums)
        if (s.d == op.d)
            return;
    me.sums.push_back({op.d, std::vector<float>(op.d, op.d + op.columns / 2)});
    for (unsigned i = 0; i < op.columns / 2; i++)
        op.d[i] = kvi_float(0x7fc00000u);
}

static inline void kvi_wgmma_finish(size_t left)
{
    kvi_wgmma_thread &me = kvi_wgmma_self();

    for (; me.groups.size() > left; me.groups.erase(me.groups.begin()))
        for (const kvi_wgmma_op &op : me.groups.front())
            for (kvi_wgmma_sums &s : me.sums)
                if (s.d == op.d)
                    kvi_wgmma_make(op, s.now.data());
    for (size_t i = me.sums.size(); i-- > 0;) {
        bool more = false;
        for (const auto &group : me.groups)
            for (const kvi_wgmma_op &op : group)
                more = more || op.d == me.sums[i].d;
        for (const kvi_wgmma_op &op : me.open)
            more = more || op.d == me.sums[i].d;
        if (more)
            continue;
        std::memcpy(me.sums[i].d, me.sums[i].now.data(), me.sums[i].now.size() * sizeof(float));
        me.sums.erase(me.sums.begin() + static_cast<ptrdiff_t>(i));
    }
    me.fenced = false;
}
#endif

/* ---- operands ---- */

KVI_DEV void kvi_operand_put(void *shared, uint4 v)
{
#ifdef KVI_CUDA_EMULATED
    const unsigned chunk = kvi_emu_offset(shared) / 16;
    if (kvi_emu_offset(shared) % 16)
        kvi_emu::fault({"kvi_operand_put", 0}, "16 bytes are not aligned");
    std::memcpy(shared, &v, sizeof v);
    kvi_wgmma_state().dirty[chunk]++;
    kvi_wgmma_self().written.push_back(chunk);
#else
    *static_cast<uint4 *>(shared) = v;
#endif
}

KVI_DEV void kvi_operand_fence()
{
#ifdef KVI_CUDA_EMULATED
    for (unsigned chunk : kvi_wgmma_self().written)
        kvi_wgmma_state().dirty[chunk]--;
    kvi_wgmma_self().written.clear();
#else
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Bits 0-13 start, 16-29 and 32-45 distances, all in units of 16 bytes; 62-63: chunks of 128-byte rows change places. */
KVI_DEV uint64_t kvi_operand(const void *shared, unsigned far, unsigned next)
{
#ifdef KVI_CUDA_EMULATED
    const unsigned at = kvi_emu_offset(shared);
#else
    const unsigned at = kvi_shared_address(shared);
#endif
    return static_cast<uint64_t>(at >> 4 & 0x3fffu) | static_cast<uint64_t>(far >> 4) << 16 |
           static_cast<uint64_t>(next >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

/* Rows are m or n, a step of 16 columns (32 bytes) from `shared` on; atoms of 8 rows follow each other. */
KVI_DEV uint64_t kvi_operand_k(const void *shared) { return kvi_operand(shared, 16, KVI_ATOM); }
/* Rows are k: 16 from `shared` on, in atoms that follow each other; the next 64 columns are `far` bytes away. */
KVI_DEV uint64_t kvi_operand_n(const void *shared, unsigned far) { return kvi_operand(shared, far, KVI_ATOM); }

/* ---- order ---- */

#ifndef KVI_CUDA_EMULATED
/* The compiler may not move what is done with them across. */
template <unsigned N> KVI_DEV void kvi_keep(float (&d)[N])
{
    KVI_UNROLL
    for (unsigned i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
template <unsigned N> KVI_DEV void kvi_keep(uint32_t (&a)[N][4])
{
    KVI_UNROLL
    for (unsigned i = 0; i < 4 * N; i++)
        asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}
#endif

/* d, and a, have been written; matrix instructions follow. */
template <unsigned N> KVI_DEV void kvi_wgmma_fence(float (&d)[N])
{
#ifdef KVI_CUDA_EMULATED
    (void)d;
    kvi_wgmma_self().fenced = true;
#else
    kvi_keep(d);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
template <unsigned N, unsigned STEPS> KVI_DEV void kvi_wgmma_fence(float (&d)[N], uint32_t (&a)[STEPS][4])
{
#ifndef KVI_CUDA_EMULATED
    kvi_keep(a);
#else
    (void)a;
#endif
    kvi_wgmma_fence(d);
}

/* End of the instructions since the last such wait; d is there. */
template <unsigned N> KVI_DEV void kvi_wgmma_wait(float (&d)[N])
{
#ifdef KVI_CUDA_EMULATED
    (void)d;
    kvi_wgmma_self().groups.push_back(kvi_wgmma_self().open);
    kvi_wgmma_self().open.clear();
    kvi_wgmma_finish(0);
#else
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
    kvi_keep(d);
#endif
}

/* ---- the instructions ---- */

#ifndef KVI_CUDA_EMULATED
#define KVI_F4(d, i)   "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KVI_F16(d, i)  KVI_F4(d, i), KVI_F4(d, i + 4), KVI_F4(d, i + 8), KVI_F4(d, i + 12)
#define KVI_F64(d, i)  KVI_F16(d, i), KVI_F16(d, i + 16), KVI_F16(d, i + 32), KVI_F16(d, i + 48)
#endif

/* 64 x 64 x 16: a and b by kvi_operand_k; d = a b, or d += a b. */
KVI_DEV void kvi_wgmma_64(float (&d)[32], uint64_t a, uint64_t b, bool add KVI_SITE_MORE)
{
#ifdef KVI_CUDA_EMULATED
    kvi_wgmma_later({d, 64, add, false, {}, a, b, false}, {file, line});
#else
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\twgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
        "%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0;\n\t}"
        : KVI_F16(d, 0), KVI_F16(d, 16)
        : "l"(a), "l"(b), "r"(add ? 1 : 0));
#endif
}

/* 64 x 256 x 16: a in registers, b by kvi_operand_n; d += a b. */
KVI_DEV void kvi_wgmma_256(float (&d)[128], const uint32_t (&a)[4], uint64_t b KVI_SITE_MORE)
{
#ifdef KVI_CUDA_EMULATED
    struct fragment {
        uint32_t a[4];
    };
    const fragment       mine = {{a[0], a[1], a[2], a[3]}};
    const unsigned char *all = kvi_emu::exchange(KVI_ALL_LANES, mine, {file, line});
    kvi_wgmma_op         op = {d, 256, true, true, {}, 0, b, true};
    for (unsigned k = 0; k < 16; k++) {
        const fragment f = kvi_emu::lane_value<fragment>(all, kvi_lane() / 4 * 4 + k % 8 / 2);
        for (unsigned r = 0; r < 2; r++)
            op.a[r][k] = kvi_of_bf16(f.a[r + k / 8 * 2] >> (16 * (k % 2)) & 0xffffu);
    }
    kvi_wgmma_later(op, {file, line});
#else
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.eq.b32 p, 0, 0;\n\twgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
        "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,"
        "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,"
        "%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,"
        "%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,"
        "%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, {%128,%129,%130,%131}, %132, p, 1, 1, 1;\n\t}"
        : KVI_F64(d, 0), KVI_F64(d, 64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

#ifndef KVI_CUDA_EMULATED
#undef KVI_F4
#undef KVI_F16
#undef KVI_F64
#endif

/* ---- warpgroups of a block ---- */

/* Registers of each thread of the warpgroup from here on, a multiple of 8: fewer or more than those of the launch. */
template <unsigned N> KVI_DEV void kvi_registers_fewer()
{
#ifndef KVI_CUDA_EMULATED
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <unsigned N> KVI_DEV void kvi_registers_more()
{
#ifndef KVI_CUDA_EMULATED
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

/* A barrier of some warps of the block, `threads` in all; id: 1 .. 15. */
KVI_DEV void kvi_sync_some(unsigned id, unsigned threads KVI_SITE_MORE)
{
#ifdef KVI_CUDA_EMULATED
    kvi_emu::barrier(id, threads, {file, line});
#else
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

#endif
