#include "emulate.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* ---- switching of stacks ---- */

#if defined(__x86_64__)
/* Save what a call keeps on this stack, its top in *from, and go on with the other stack. */
extern "C" void kvi_emu_switch(void **from, void *to);
__asm__(".text\n.p2align 4\n.hidden kvi_emu_switch\n.globl kvi_emu_switch\n.type kvi_emu_switch, @function\n"
        "kvi_emu_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n.size kvi_emu_switch, .-kvi_emu_switch\n");
#endif

namespace kvi_emu {
namespace {

constexpr unsigned N_BARRIERS = 16;
constexpr size_t   STACK_BYTES = 256 * 1024;
constexpr size_t   SLOT_BYTES = 64;

struct copy {
    void       *to;
    const void *from;
    size_t      bytes, zeros;
};

struct bulk {
    copy      what;
    uint64_t *bar;
};

enum state { READY, WAITS, DONE };

struct fiber {
    place is;
    state st;
    site  at;
    bool (*ready)(const void *, uint64_t);
    const void *ready_a;
    uint64_t    ready_b;
    std::vector<std::vector<copy>> groups; /* committed, oldest first */
    std::vector<copy>              open;
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    char *stack;
};

struct meeting { /* of the lanes of a mask */
    uint32_t mask = 0, arrived = 0;
    uint64_t generation = 0;
    site     at = {nullptr, 0};
    alignas(16) unsigned char slots[2][32 * SLOT_BYTES];
};

struct barrier_state {
    unsigned arrived = 0, count = 0;
    uint64_t generation = 0;
    site     at = {nullptr, 0};
};

struct machine {
    int                         order = ASCENDING;
    uint64_t                    seed = 1, n_launches = 0, progress = 0;
    std::string                 fault_text;
    bool                        failed = false;
    const char                 *kernel = "";
    std::vector<fiber>          fibers;
    std::vector<std::deque<meeting>> warps;
    barrier_state               bars[N_BARRIERS];
    std::vector<bulk>           bulks;
    const std::function<void()> *body = nullptr;
    fiber                      *now = nullptr;
    std::vector<char *>         stacks;
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
#ifdef EMU_ASAN
    void       *fake = nullptr;
    const void *bottom = nullptr;
    size_t      bottom_size = 0;
#endif
    ~machine()
    {
        for (char *s : stacks)
            munmap(s, STACK_BYTES);
    }
};

thread_local machine m;

uint64_t next_random()
{
    m.seed ^= m.seed << 13;
    m.seed ^= m.seed >> 7;
    m.seed ^= m.seed << 17;
    return m.seed;
}

void to_scheduler(bool for_good)
{
    fiber *f = m.now;
#ifdef EMU_ASAN
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, m.bottom, m.bottom_size);
#endif
    (void)for_good;
#if defined(__x86_64__)
    kvi_emu_switch(&f->sp, m.sp);
#else
    swapcontext(&f->context, &m.context);
#endif
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(fake, &m.bottom, &m.bottom_size);
#endif
}

void to_fiber(fiber *f)
{
    m.now = f;
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&m.fake, f->stack, STACK_BYTES);
#endif
#if defined(__x86_64__)
    kvi_emu_switch(&m.sp, f->sp);
#else
    swapcontext(&m.context, &f->context);
#endif
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(m.fake, nullptr, nullptr);
#endif
    m.now = nullptr;
}

void do_copy(const copy &c)
{
    if (c.bytes)
        std::memcpy(c.to, c.from, c.bytes);
    std::memset(static_cast<char *>(c.to) + c.bytes, 0, c.zeros);
}

void finish_groups(fiber *f, size_t left)
{
    while (f->groups.size() > left) {
        for (const copy &c : f->groups.front())
            do_copy(c);
        f->groups.erase(f->groups.begin());
    }
}

void fiber_main()
{
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &m.bottom, &m.bottom_size);
#endif
    (*m.body)(); /* copies that nobody waited for are never seen */
    m.now->st = DONE;
    m.progress++;
    to_scheduler(true);
    std::abort(); /* a fiber that has ended is never resumed */
}

void prepare(fiber *f)
{
#ifdef EMU_ASAN
    /* a fiber that was given up in a fault has left its frames marked */
    __asan_unpoison_memory_region(f->stack, STACK_BYTES);
#endif
#if defined(__x86_64__)
    /* The first switch pops six registers and returns into fiber_main, which finds the stack as after a call. */
    void **top = reinterpret_cast<void **>(f->stack + STACK_BYTES - 64);
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(fiber_main);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#endif
}

void set_fault(site at, const std::string &what)
{
    if (m.failed)
        return;
    char head[256];
    const char *name = at.file ? at.file : "?";
    std::snprintf(head, sizeof head, "%s at %s:%d: ", m.kernel, name, at.line);
    m.fault_text = head + what;
    m.failed = true;
}

void nobody_goes_on()
{
    std::string what = "no thread of the block can go on:";
    int         shown = 0;

    for (const fiber &f : m.fibers) {
        if (f.st == DONE || shown == 4)
            continue;
        char line[192];
        std::snprintf(line, sizeof line, " thread %u waits at %s:%d;", f.is.linear, f.at.file ? f.at.file : "?", f.at.line);
        what += line;
        shown++;
    }
    size_t done = 0;
    for (const fiber &f : m.fibers)
        done += f.st == DONE;
    what += " " + std::to_string(done) + " have ended";
    set_fault({nullptr, 0}, what);
}

void run_block()
{
    std::vector<size_t> turn(m.fibers.size());
    size_t              done = 0;

    for (size_t i = 0; i < turn.size(); i++)
        turn[i] = m.order == DESCENDING ? turn.size() - 1 - i : i;
    while (done < m.fibers.size() && !m.failed) {
        const uint64_t before = m.progress;
        if (m.order == SHUFFLED)
            for (size_t i = turn.size(); i > 1; i--)
                std::swap(turn[i - 1], turn[next_random() % i]);
        /* In the two plain orders a warp runs as far as it can before the next one begins: whatever the others should have done
         * before, and no barrier asked for, is missing. */
        const size_t group = m.order == SHUFFLED ? turn.size() : 32;
        for (size_t first = 0; first < turn.size() && !m.failed; first += group) {
            const size_t last = first + group < turn.size() ? first + group : turn.size();
            bool         moved = true;
            while (moved && !m.failed) {
                moved = false;
                for (size_t i = first; i < last && !m.failed; i++) {
                    fiber *f = &m.fibers[turn[i]];
                    if (f->st == DONE || (f->st == WAITS && !f->ready(f->ready_a, f->ready_b)))
                        continue;
                    f->st = READY;
                    m.progress++;
                    to_fiber(f);
                    done += f->st == DONE;
                    moved = m.order != SHUFFLED;
                }
            }
        }
        if (m.progress == before && !m.failed)
            nobody_goes_on();
    }
}

bool generation_moved(const void *a, uint64_t b) { return *static_cast<const uint64_t *>(a) != b; }

} // namespace

const place &self() { return m.now->is; }

void fault(site at, const char *format, ...)
{
    char    text[512];
    va_list args;

    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    set_fault(at, text);
    to_scheduler(true);
    std::abort();
}

void wait_until(bool (*ready)(const void *, uint64_t), const void *a, uint64_t b, site at)
{
    fiber *f = m.now;

    while (!ready(a, b)) {
        f->st = WAITS;
        f->at = at;
        f->ready = ready;
        f->ready_a = a;
        f->ready_b = b;
        to_scheduler(false);
    }
    f->st = READY;
}

void barrier(unsigned id, unsigned count, site at)
{
    if (id >= N_BARRIERS || count == 0 || count > m.fibers.size())
        fault(at, "barrier %u for %u threads does not exist", id, count);
    barrier_state &b = m.bars[id];
    if (b.arrived == 0) {
        b.count = count;
        b.at = at;
    } else if (b.count != count) {
        fault(at, "barrier %u is for %u threads here and for %u at %s:%d", id, count, b.count, b.at.file, b.at.line);
    } else if (id == 0 && (b.at.line != at.line || std::strcmp(b.at.file, at.file) != 0)) {
        fault(at, "threads of a block wait at different barriers: others at %s:%d", b.at.file, b.at.line);
    }
    const uint64_t generation = b.generation;
    m.progress++;
    if (++b.arrived == count) {
        b.arrived = 0;
        b.generation++;
    } else {
        wait_until(generation_moved, &b.generation, generation, at);
    }
}

const unsigned char *exchange(uint32_t mask, const void *mine, size_t size, site at)
{
    const unsigned lane = m.now->is.lane, warp = m.now->is.warp;
    auto          &all = m.warps[warp];
    meeting       *with = nullptr;

    if (!(mask >> lane & 1u))
        fault(at, "lane %u is not in its own mask %08x", lane, mask);
    for (meeting &x : all) {
        if (x.mask == mask)
            with = &x;
        else if (x.arrived & mask)
            fault(at, "lanes of a warp meet with masks %08x here and %08x at %s:%d", mask, x.mask, x.at.file, x.at.line);
    }
    if (!with) {
        all.emplace_back();
        with = &all.back();
        with->mask = mask;
    }
    if (with->arrived == 0)
        with->at = at;
    else if (with->at.line != at.line || std::strcmp(with->at.file, at.file) != 0)
        fault(at, "lanes of a warp meet at different places: others at %s:%d", with->at.file, with->at.line);
    const uint64_t generation = with->generation;
    unsigned char *slots = with->slots[generation & 1];
    std::memcpy(slots + SLOT_BYTES * lane, mine, size);
    with->arrived |= 1u << lane;
    m.progress++;
    if (with->arrived == mask) {
        with->arrived = 0;
        with->generation++;
    } else {
        wait_until(generation_moved, &with->generation, generation, at);
    }
    return slots;
}

void copy_later(void *to, const void *from, size_t bytes, size_t zeros) { m.now->open.push_back({to, from, bytes, zeros}); }

void copy_commit()
{
    m.now->groups.push_back(m.now->open);
    m.now->open.clear();
}

void copy_wait(unsigned groups_left) { finish_groups(m.now, groups_left); }

/* A memory barrier: bits 0-11 arrivals wanted, 12-23 arrivals missing, 24-62 bytes missing + 2^38, 63 the phase. */
namespace {
constexpr uint64_t BIAS = 1ull << 38;
constexpr uint64_t BYTES_MASK = (1ull << 39) - 1;

void mbar_set(uint64_t *bar, uint64_t wanted, uint64_t missing, uint64_t bytes, uint64_t phase)
{
    *bar = wanted | missing << 12 | bytes << 24 | phase << 63;
}

void mbar_change(uint64_t *bar, unsigned arrivals, int64_t bytes)
{
    const uint64_t wanted = *bar & 0xfff;
    uint64_t       missing = *bar >> 12 & 0xfff, left = *bar >> 24 & BYTES_MASK, phase = *bar >> 63;

    missing -= arrivals;
    left += static_cast<uint64_t>(bytes);
    if (missing == 0 && left == BIAS) {
        missing = wanted;
        phase ^= 1;
    }
    mbar_set(bar, wanted, missing, left, phase);
    m.progress++;
}

bool phase_done(const void *bar, uint64_t parity) { return (*static_cast<const uint64_t *>(bar) >> 63) != parity; }
} // namespace

void mbar_init(uint64_t *bar, unsigned count) { mbar_set(bar, count, count, BIAS, 0); }

void mbar_arrive(uint64_t *bar, unsigned bytes_expected)
{
    if ((*bar >> 12 & 0xfff) == 0)
        fault({nullptr, 0}, "more arrivals at a memory barrier than it wants");
    mbar_change(bar, 1, bytes_expected);
}

void bulk_copy(void *to, const void *from, unsigned bytes, uint64_t *bar)
{
    if (bytes % 16 || reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16)
        fault({nullptr, 0}, "a bulk copy is not aligned to 16 bytes");
    m.bulks.push_back({{to, from, bytes, 0}, bar});
}

void mbar_wait(uint64_t *bar, unsigned parity, site at)
{
    for (size_t i = 0; i < m.bulks.size();) { /* nothing on the stack: a fiber may be given up while it waits */
        const bulk b = m.bulks[i];

        if (b.bar != bar) {
            i++;
            continue;
        }
        m.bulks.erase(m.bulks.begin() + static_cast<std::ptrdiff_t>(i));
        do_copy(b.what);
        mbar_change(bar, 0, -static_cast<int64_t>(b.what.bytes));
    }
    wait_until(phase_done, bar, parity, at);
}

bool launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body)
{
    const size_t n = static_cast<size_t>(block.x) * block.y * block.z;

    m.kernel = name;
    m.failed = false;
    m.n_launches++;
    if (n == 0 || n > 1024 || shared_bytes > 227 * 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 ||
        grid.z > 65535) {
        set_fault({nullptr, 0}, "no device runs this grid");
        return false;
    }
    std::unique_ptr<unsigned char[]> space(new unsigned char[shared_bytes + 1024]);
    unsigned char *shared = space.get() + (1024 - reinterpret_cast<uintptr_t>(space.get()) % 1024);
    while (m.stacks.size() < n) {
        void *s = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (s == MAP_FAILED) {
            set_fault({nullptr, 0}, "no memory for the stacks of the threads");
            return false;
        }
        m.stacks.push_back(static_cast<char *>(s));
    }
    m.body = &body;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x && !m.failed; x++) {
                std::memset(shared, 0xff, shared_bytes);
                m.fibers.assign(n, fiber());
                m.warps.assign((n + 31) / 32, {});
                m.bulks.clear();
                for (barrier_state &b : m.bars)
                    b = barrier_state();
                for (size_t i = 0; i < n; i++) {
                    fiber         &f = m.fibers[i];
                    const unsigned u = static_cast<unsigned>(i);
                    f.is = {dim3(u % block.x, u / block.x % block.y, u / block.x / block.y), dim3(x, y, z), block, grid,
                            u, u / 32, u % 32, shared};
                    f.st = READY;
                    f.stack = m.stacks[i];
                    prepare(&f);
                }
                run_block();
            }
    m.fibers.clear();
    return !m.failed;
}

} // namespace kvi_emu

extern "C" void kvi_emu_order(int order, uint64_t seed)
{
    kvi_emu::m.order = order;
    kvi_emu::m.seed = seed ? seed : 1;
}

extern "C" const char *kvi_emu_fault(void)
{
    static thread_local std::string text;

    text = kvi_emu::m.fault_text;
    kvi_emu::m.fault_text.clear();
    return text.c_str();
}

extern "C" uint64_t kvi_emu_launches(void) { return kvi_emu::m.n_launches; }
