/* Twelve characters who speak in a game of sixty frames a second, and no frame is late.
 *
 *   c++ -std=c++17 game_loop.cc $(pkg-config --cflags --libs kvcsa) -o game_loop
 *   ./game_loop examples/models/tiny [FRAMES [--paced]]
 *
 * The world is read once; every character is a fork of it and shares its bytes. In each frame the
 * characters get a slice of a few milliseconds. A step is cut in two ways: `deadline_ns` starts no
 * further chunk when the time is over, and `max_rows` keeps a chunk so small that the last one ends
 * in time, since a chunk is not cut in the middle. What is not done waits in the queue.
 *
 * On the way one character is interrupted and what it was about to say is taken back (rewind), and
 * for some frames one speaks alone while the others wait. In the end every character is computed
 * again, alone and in one piece: the bits are the same. Nothing here needs exceptions, as games are
 * built without; --paced waits for each frame as a game would. */
#include <kvcsa.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string_view>
#include <thread>

namespace {

constexpr int n_characters = 12;
constexpr double frame_ms = 1000.0 / 60;
constexpr double slice_ms = 4;            /* of each frame, for all characters together */
constexpr std::size_t line_tokens = 24;   /* of one line that is spoken */
constexpr std::uint64_t day_tokens = 1200; /* then a character forgets the day */

const char world[] =
    "The ship lay in the harbour, and there was no wind. It was the last day before the voyage: "
    "the boats hung in their places, the casks were full of water, and the bread was in the hold. "
    "Every man had signed his name or made his mark. The captain had not been seen since the "
    "morning. Some said that he was ill; others had heard him walk up and down in his cabin in the "
    "night, and the sound was as of a stick upon the planks. The harpooneers sat by the fire and "
    "spoke of the whale which no man had killed, white as snow, older than the oldest ship. The "
    "mate wrote in the book what was still wanting, lamps and oil and sixty fathoms of line, and "
    "when it was dark the crew came together upon the deck, and each of them said what he thought "
    "of the voyage, and what he had dreamed. In the town the windows were lighted, and the women "
    "stood at the doors with their children, and did not speak, for they had seen many ships go "
    "and not all of them come back. The bell of the chapel was heard over the water. There were "
    "stones in the wall of it for those who had no grave: lost near the island of desolation, "
    "towed out of sight by a whale, and the names, and the years. An old man walked along the pier "
    "and asked every sailor whether he had signed, and whether there was anything in the paper "
    "about his soul. And the great ship moved a little at her ropes, as if she too were waiting. ";

struct part {
    const char *name, *sheet;
};
const part parts[n_characters] = {
    {"captain", "The captain, who had one thing in his mind, came out and said, \""},
    {"mate", "The mate, a careful man who had a wife and a child, said, \""},
    {"second mate", "The second mate, who laughed at everything, took his pipe and said, \""},
    {"harpooneer", "The harpooneer, a king's son from far islands, said, \""},
    {"cook", "The cook, who was old and had seen many ships, said, \""},
    {"carpenter", "The carpenter, without looking up from his bench, said, \""},
    {"blacksmith", "The blacksmith, whose house had burned, said, \""},
    {"cabin boy", "The boy, who was afraid of the sea, said, \""},
    {"preacher", "The preacher lifted up his hands and said, \""},
    {"stranger", "A stranger stood upon the pier, and cried, \""},
    {"owner", "The owner of the ship, counting the casks, said, \""},
    {"sailor", "A sailor, who had been asleep, sat up and said, \""},
};

/* ------------------------------------------------------------------ the host's side */

struct memory { /* the game's allocator: here it only counts */
    std::atomic<std::int64_t> held{0}, peak{0};

    void *allocate(std::size_t n, std::size_t align) noexcept
    {
        void *p = ::operator new(n, std::align_val_t(align), std::nothrow);
        if (p) {
            const std::int64_t now = held += static_cast<std::int64_t>(n);
            std::int64_t old = peak;
            while (now > old && !peak.compare_exchange_weak(old, now)) {
            }
        }
        return p;
    }
    void deallocate(void *p, std::size_t n, std::size_t align) noexcept
    {
        held -= static_cast<std::int64_t>(n);
        ::operator delete(p, std::align_val_t(align), std::nothrow);
    }
};

using steady = std::chrono::steady_clock;

double ms_since(steady::time_point t)
{
    return std::chrono::duration<double, std::milli>(steady::now() - t).count();
}

/* Milliseconds that this thread has computed; a negative number where the system cannot tell. */
double cpu_ms()
{
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec t = {};
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0)
        return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
#endif
    return -1;
}

/* What else a frame does: gulls about the masts. */
class gulls {
    struct gull {
        float x, y, vx, vy;
    };
    std::array<gull, 400> flock_;

public:
    gulls()
    {
        for (std::size_t i = 0; i < flock_.size(); i++)
            flock_[i] = {static_cast<float>(i % 20), static_cast<float>(i / 20), 1, 0};
    }
    void fly()
    {
        for (gull &a : flock_) {
            float fx = 0, fy = 0;
            for (const gull &b : flock_) { /* away from whoever is near */
                const float dx = a.x - b.x, dy = a.y - b.y, d = dx * dx + dy * dy + 0.1f;
                fx += dx / (d * d);
                fy += dy / (d * d);
            }
            a.vx = a.vx * 0.98f + (fx - a.x * 0.2f) * 0.016f;
            a.vy = a.vy * 0.98f + (fy - a.y * 0.2f) * 0.016f;
            a.x += a.vx * 0.016f;
            a.y += a.vy * 0.016f;
        }
    }
};

/* Times of frames. */
class histogram {
    static constexpr std::array<double, 9> edges_ = {1, 2, 3, 4, 5, 6, 8, 12, frame_ms};
    std::array<int, 10> n_ = {};

public:
    double worst = 0, sum = 0;
    int n = 0;

    void add(double ms)
    {
        const auto *at = std::upper_bound(edges_.begin(), edges_.end(), ms);
        n_[static_cast<std::size_t>(at - edges_.begin())]++;
        worst = std::max(worst, ms);
        sum += ms;
        n++;
    }
    void print() const
    {
        const int most = std::max(1, *std::max_element(n_.begin(), n_.end()));
        for (std::size_t i = 0; i < n_.size(); i++) {
            if (i < edges_.size())
                std::printf("  below %5.2f ms %6d  ", edges_[i], n_[i]);
            else
                std::printf("  longer         %6d  ", n_[i]);
            for (int k = 0; k < (n_[i] * 40 + most - 1) / most; k++)
                std::putchar('#');
            std::putchar('\n');
        }
    }
};

/* ------------------------------------------------------------------ the characters */

struct character {
    const part *role = nullptr;
    kvcsa::session session;
    std::uint64_t sheet_end = 0;  /* its own text ends here; what it says comes behind */
    std::uint64_t line_begin = 0; /* of the line that it is speaking */
    std::size_t n_spoken = 0;     /* tokens of it */
    int n_lines = 0;
    bool waits = false;           /* tokens are queued */
    bool rebuilds = false;        /* a step has to run tokens again, after a long rewind */
    char line[line_tokens * 40 + 1] = ""; /* the last one that is complete */
};

/* Everybody draws differently; the same character at the same place draws the same again. */
kvcsa::sampler_params voice(const character &c)
{
    kvcsa::sampler_params p;
    p.seed = static_cast<std::uint64_t>(c.role - parts) + 1;
    p.temperature = 0.7f;
    p.min_p = 0.05f;
    return p;
}

class game {
public:
    /* Everything hangs on the allocator, so it is made first and goes last. */
    explicit game(memory &m) : hook_(m) {}
    kvcsa::status open(const char *path);
    kvcsa::status frame(); /* the characters' slice of it */
    kvcsa::status interrupt(character &c);
    kvcsa::status finish();
    kvcsa::status compare_with_alone(int &n_same);
    kvcsa::status print_bytes();

    bool loading() const { return !cast_[0].session; }
    std::uint64_t n_made() const { return n_made_; }
    std::array<character, n_characters> &cast() { return cast_; }
    void spotlight(int who) { alone_ = who; } /* -1 = nobody */
    bool everybody_has_spoken() const
    {
        return std::all_of(cast_.begin(), cast_.end(),
                           [](const character &c) { return c.n_lines > 0; });
    }
    bool cut_is_forgotten() const { return cut_same_; }

private:
    kvcsa::status read(kvcsa::session &s, std::string_view text);
    kvcsa::status begin_scene();
    kvcsa::status speak(character &c);
    kvcsa::status end_line(character &c);
    kvcsa::status slice(kvcsa::session **list, std::size_t n, double left_ms);
    kvcsa::status go_on(kvcsa::session &s, const kvcsa::sampler_params &how,
                        kvcsa::buffer<std::int32_t> &out);

    kvcsa::allocator_hook<memory> hook_;
    kvcsa::model model_;
    kvcsa::pool pool_;
    kvcsa::session world_;
    std::array<character, n_characters> cast_;
    kvcsa::buffer<std::int32_t> pause_; /* between two lines */
    std::uint64_t n_made_ = 0;
    double ms_a_row_ = 0.5;             /* measured; a guess for the first frame */
    kvcsa::session_params character_;   /* how a fork differs from the world */
    int alone_ = -1;
    std::size_t turn_ = 0;
    bool cut_same_ = false;
};

/* Queue a text. */
kvcsa::status game::read(kvcsa::session &s, std::string_view text)
{
    auto ids = model_.tokenize(text);
    if (!ids)
        return ids.error();
    return s.append(*ids).error();
}

kvcsa::status game::open(const char *path)
{
    kvcsa::model_params mp;
    mp.allocator = hook_.get();
    auto m = kvcsa::model::open(path, mp);
    if (!m)
        return m.error();
    model_ = std::move(*m);

    kvcsa::pool_params pp;
    pp.allocator = hook_.get();
    pp.n_threads = 1; /* the frame's own; a game with a job system gives an executor */
    auto p = kvcsa::pool::create(pp);
    if (!p)
        return p.error();
    pool_ = std::move(*p);

    kvcsa::session_params sp;
    sp.chunk_tokens = 16;        /* little, so that a slice can end */
    sp.window_slack_tokens = 32; /* taking back a line costs nothing */
    auto s = kvcsa::session::create(pool_, model_, sp);
    character_ = sp;
    character_.flags = KVCSA_SESSION_PRIVATE; /* what it says is nobody else's beginning */
    auto t = model_.tokenize("\" Then he was silent for a while, and he said, \"");
    if (!s || !t)
        return s ? t.error() : s.error();
    world_ = std::move(*s);
    pause_ = std::move(*t);
    return read(world_, world);
}

/* The world is read: twelve forks of it. */
kvcsa::status game::begin_scene()
{
    const auto start = steady::now();

    for (std::size_t i = 0; i < cast_.size(); i++) {
        character &c = cast_[i];
        auto fork = world_.fork(world_.length(), &character_);
        if (!fork)
            return fork.error();
        c.role = &parts[i];
        c.session = std::move(*fork);
        if (kvcsa::status st = read(c.session, c.role->sheet); !st)
            return st;
        c.waits = true;
    }
    std::printf("The world has %llu tokens; twelve forks of it and their sheets took %.2f ms.\n",
                static_cast<unsigned long long>(world_.length()), ms_since(start));
    return {};
}

/* The next token of a character whose queue is empty. */
kvcsa::status game::speak(character &c)
{
    if (c.sheet_end == 0)
        c.sheet_end = c.line_begin = c.session.length();
    if (c.n_spoken == line_tokens)
        return end_line(c);
    auto token = c.session.sample(voice(c));
    if (!token)
        return token.error();
    c.n_spoken++;
    c.waits = true;
    n_made_++;
    return c.session.append(*token).error();
}

/* A line is complete: kept as text; the next one begins behind a pause. */
kvcsa::status game::end_line(character &c)
{
    auto spoken = c.session.tokens(c.line_begin);
    auto stream = kvcsa::text_stream::create(model_);
    std::size_t n = 0;

    if (!spoken || !stream)
        return spoken ? stream.error() : spoken.error();
    for (std::size_t i = 0; i <= spoken->size(); i++) { /* never half a character */
        auto text = i < spoken->size() ? stream->push((*spoken)[i]) : stream->finish();
        if (!text)
            return text.error();
        for (char b : *text)
            if (n + 1 < sizeof c.line)
                c.line[n++] = b == '\n' ? ' ' : b;
    }
    c.line[n] = '\0';
    c.n_lines++;
    c.n_spoken = 0;
    if (c.session.length() > day_tokens) { /* a new day: back to what the character is */
        c.line_begin = c.sheet_end;
        c.waits = c.rebuilds = true; /* rows too, and so a matter of slices */
        return c.session.rewind(c.sheet_end);
    }
    c.line_begin = c.session.length() + pause_.size();
    c.waits = true;
    return c.session.append(pause_).error();
}

/* One step, cut by time and by rows. */
kvcsa::status game::slice(kvcsa::session **list, std::size_t n, double left_ms)
{
    std::array<kvcsa_step_result, n_characters> results = {};
    const kvcsa::view<kvcsa::session *const> who(list, n);
    kvcsa::step_params p;
    const auto start = steady::now();
    std::uint64_t rows = 0;

    p.deadline_ns = static_cast<std::uint64_t>(left_ms * 1e6) + 1;
    p.max_rows = static_cast<std::uint64_t>(std::max(1.0, left_ms / ms_a_row_));
    kvcsa::status st = pool_.step(who, p, kvcsa::view<kvcsa_step_result>(results).first(n));
    for (std::size_t i = 0; i < n; i++) {
        rows += results[i].n_computed;
        for (character &c : cast_) {
            if (&c.session != list[i])
                continue;
            if (c.rebuilds) {
                auto s = c.session.stats();
                if (!s)
                    return s.error();
                c.rebuilds = s->n_replay > 0;
            }
            c.waits = c.rebuilds || results[i].n_queued > 0;
        }
    }
    if (rows == 0) /* nothing to do, or rows that were run again: nothing to learn from */
        return st;
    /* Quick to learn that rows are slow, slow to believe that they are quick. */
    const double seen = ms_since(start) / static_cast<double>(rows);
    ms_a_row_ = seen > ms_a_row_ ? std::min(seen, 2 * ms_a_row_) : 0.95 * ms_a_row_ + 0.05 * seen;
    ms_a_row_ = std::min(ms_a_row_, slice_ms / 2); /* a row in every frame, whatever it takes */
    return st;
}

/* The characters' part of a frame: tokens until the time is over. */
kvcsa::status game::frame()
{
    const auto start = steady::now();

    for (double left = slice_ms; left > ms_a_row_; left = slice_ms - ms_since(start)) {
        std::array<kvcsa::session *, n_characters> list = {};
        std::size_t n = 0;

        if (loading()) {
            const std::uint64_t before = world_.length();
            list[n++] = &world_;
            if (kvcsa::status st = slice(list.data(), n, left); !st)
                return st;
            if (world_.length() == before) /* nothing was left to do */
                return begin_scene();
            continue;
        }
        turn_++; /* who comes first gets the rows: everybody in turn */
        for (std::size_t i = 0; i < cast_.size(); i++) {
            const std::size_t k = (i + turn_) % cast_.size();
            character &c = cast_[k];
            if (alone_ >= 0 && static_cast<std::size_t>(alone_) != k)
                continue; /* it waits, with whatever is in its queue */
            if (!c.waits)
                if (kvcsa::status st = speak(c); !st)
                    return st;
            list[n++] = &c.session;
        }
        if (kvcsa::status st = slice(list.data(), n, left); !st)
            return st;
    }
    return {};
}

/* What a session says next: line_tokens tokens, computed at once. */
kvcsa::status game::go_on(kvcsa::session &s, const kvcsa::sampler_params &how,
                          kvcsa::buffer<std::int32_t> &out)
{
    for (std::size_t i = 0; i < line_tokens; i++) {
        if (kvcsa::status st = pool_.step(s); !st)
            return st;
        auto token = s.sample(how);
        if (!token)
            return token.error();
        if (!out.push_back(*token))
            return kvcsa::status::failure(KVCSA_ERR_NOMEM, "no memory for a line");
        if (auto at = s.append(*token); !at)
            return at.error();
    }
    return pool_.step(s);
}

/* Cut a character short: the second half of its line was never said, and something else happens.
 * What it says then is what one says that never began the second half. */
kvcsa::status game::interrupt(character &c)
{
    kvcsa::buffer<std::int32_t> said, would;

    if (kvcsa::status st = pool_.step(c.session); !st) /* a rewind wants an empty queue */
        return st;
    c.waits = false;
    const std::uint64_t end = c.session.length(), cut = c.line_begin + (end - c.line_begin) / 2;
    auto other = c.session.fork(cut); /* never has heard of the rest */
    if (!other)
        return other.error();
    const auto start = steady::now();
    if (kvcsa::status st = c.session.rewind(cut); !st)
        return st;
    const double ms = ms_since(start);
    for (kvcsa::session *s : {&c.session, &*other})
        if (kvcsa::status st = read(*s, "--\" A great wind arose. \""); !st)
            return st;
    if (kvcsa::status st = go_on(c.session, voice(c), said); !st)
        return st;
    if (kvcsa::status st = go_on(*other, voice(c), would); !st)
        return st;
    cut_same_ = std::equal(said.begin(), said.end(), would.begin(), would.end());
    std::printf("The %s is cut: %llu of %llu tokens of its line taken back in %.3f ms.\n",
                c.role->name, static_cast<unsigned long long>(end - cut),
                static_cast<unsigned long long>(end - c.line_begin), ms);
    c.line_begin = c.session.length();
    c.n_spoken = 0;
    return {};
}

/* Nobody waits any more. */
kvcsa::status game::finish()
{
    std::array<kvcsa::session *, n_characters> all = {};

    for (std::size_t i = 0; i < cast_.size(); i++)
        all[i] = &cast_[i].session;
    return pool_.step(all);
}

/* Each character once more: alone, in one append, without what others have computed. */
kvcsa::status game::compare_with_alone(int &n_same)
{
    auto info = model_.info();
    if (!info)
        return info.error();
    kvcsa::buffer<float> here, there;
    if (!here.resize(info->vocab_tokens) || !there.resize(info->vocab_tokens))
        return kvcsa::status::failure(KVCSA_ERR_NOMEM, "no memory for logits");
    for (character &c : cast_) {
        kvcsa::session_params sp;
        sp.reuse = KVCSA_REUSE_NONE;
        auto s = kvcsa::session::create(pool_, model_, sp);
        auto ids = c.session.tokens();
        if (!s || !ids)
            return s ? ids.error() : s.error();
        if (auto at = s->append(*ids); !at)
            return at.error();
        for (kvcsa::status st : {pool_.step(*s), s->logits(there), c.session.logits(here)})
            if (!st)
                return st;
        n_same += std::memcmp(here.data(), there.data(), here.size() * sizeof(float)) == 0;
    }
    return pool_.check();
}

kvcsa::status game::print_bytes()
{
    std::uint64_t alone = 0, shared = 0;

    for (character &c : cast_) {
        auto s = c.session.stats();
        if (!s)
            return s.error();
        alone += s->block_bytes + s->window_bytes;
        shared += s->shared_bytes;
    }
    auto one = cast_[0].session.stats();
    auto p = pool_.stats();
    if (!one || !p)
        return one ? p.error() : one.error();
    std::printf("The %s holds %llu bytes of blocks, %llu shared and %llu private, and %llu of "
                "windows.\n",
                cast_[0].role->name, static_cast<unsigned long long>(one->block_bytes),
                static_cast<unsigned long long>(one->shared_bytes),
                static_cast<unsigned long long>(one->block_bytes - one->shared_bytes),
                static_cast<unsigned long long>(one->window_bytes));
    const std::uint64_t held = p->used_bytes - p->evictable_bytes;
    std::printf("The pool holds %llu bytes for twelve characters and the world; twelve that share "
                "nothing would be %llu.\n",
                static_cast<unsigned long long>(held), static_cast<unsigned long long>(alone));
    return shared > 0 && held < alone
               ? kvcsa::status()
               : kvcsa::status::failure(KVCSA_ERR_INTERNAL, "nothing is shared");
}

/* ------------------------------------------------------------------ the loop */

/* The figures of one stretch of frames. */
struct stretch {
    std::uint64_t tokens = 0;
    double ms = 0;
    double rate() const { return ms > 0 ? static_cast<double>(tokens) * 1e3 / ms : 0; }
};

kvcsa::status play(game &g, int n_frames, bool paced)
{
    constexpr std::size_t star = 3; /* who speaks alone for a while */
    const int cut_at = n_frames / 3, alone_from = n_frames / 2, n_alone = n_frames / 10;
    int alone_left = -1; /* frames; -1 = not yet */
    bool cut = false;
    std::array<std::uint64_t, n_characters> length = {};
    histogram h;
    gulls birds;
    stretch together, alone;
    double worst_own = 0;
    int n_late = 0, n_taken = 0, n_loading = 0, n_moved = 0;
    const auto begin = steady::now();

    /* A slow machine takes more frames to tell the same tale, not longer ones. */
    const auto told = [&] { return cut && alone_left == 0 && g.everybody_has_spoken(); };
    for (int f = 0; f < n_frames || (!told() && f < 20 * n_frames); f++) {
        const auto start = steady::now();
        const double cpu = cpu_ms();
        const std::uint64_t made = g.n_made();
        const bool loading = g.loading();

        if (alone_left < 0 && f >= alone_from && !loading) {
            alone_left = n_alone;
            g.spotlight(static_cast<int>(star));
            for (std::size_t i = 0; i < length.size(); i++)
                length[i] = g.cast()[i].session.length();
        } else if (alone_left > 0 && (alone_left > 1 || alone.tokens > 0) && --alone_left == 0) {
            g.spotlight(-1);
            for (std::size_t i = 0; i < length.size(); i++)
                n_moved += i != star && g.cast()[i].session.length() != length[i];
        }
        birds.fly();
        if (kvcsa::status st = g.frame(); !st)
            return st;

        const double ms = ms_since(start), own = cpu < 0 ? ms : std::min(ms, cpu_ms() - cpu);
        h.add(ms);
        worst_own = std::max(worst_own, own);
        n_loading += loading;
        n_late += own > frame_ms;                   /* our fault */
        n_taken += ms > frame_ms && own <= frame_ms; /* the system ran something else */
        stretch &now = alone_left > 0 ? alone : together;
        now.tokens += g.n_made() - made;
        now.ms += loading ? 0 : ms;
        /* A cut scene, not a frame: it also computes what it is compared with. */
        if (f >= cut_at && !cut && alone_left <= 0 && g.cast()[0].n_spoken >= line_tokens / 2) {
            cut = true;
            if (kvcsa::status st = g.interrupt(g.cast()[0]); !st)
                return st;
        }
        if (paced)
            std::this_thread::sleep_until(
                begin + std::chrono::duration_cast<steady::duration>(
                            std::chrono::duration<double, std::milli>(frame_ms * (f + 1))));
    }
    if (kvcsa::status st = g.finish(); !st)
        return st;

    std::printf("\n");
    for (const character &c : g.cast())
        std::printf("%12s  %3d lines, %5llu tokens  \"%.60s\n", c.role->name, c.n_lines,
                    static_cast<unsigned long long>(c.session.length()), c.line);
    std::printf("\n%d frames, %d of them while the world was read; a slice is %.0f ms\n", h.n,
                n_loading, slice_ms);
    h.print();
    std::printf("  worst %.2f ms, mean %.2f ms, budget %.2f ms; the most that a frame computed: "
                "%.2f ms\n",
                h.worst, h.sum / h.n, frame_ms, worst_own);
    std::printf("  %d frames over the budget by our doing, %d because the system ran something "
                "else\n",
                n_late, n_taken);
    std::printf("%llu tokens: %.0f a second of frame time together; the %s alone %.0f, while "
                "eleven waited\n",
                static_cast<unsigned long long>(g.n_made()), together.rate(),
                g.cast()[star].role->name, alone.rate());

    if (n_late)
        return kvcsa::status::failure(KVCSA_ERR_INTERNAL, "a frame was over its budget");
    if (n_moved || alone.tokens == 0)
        return kvcsa::status::failure(KVCSA_ERR_INTERNAL, "those who were to wait did not");
    if (!g.cut_is_forgotten())
        return kvcsa::status::failure(KVCSA_ERR_INTERNAL, "nobody was cut, or it was noticed");
    if (!g.everybody_has_spoken())
        return kvcsa::status::failure(KVCSA_ERR_INTERNAL, "a character has not spoken");
    return {};
}

kvcsa::status run(const char *model, int n_frames, bool paced, memory &m)
{
    game g(m);
    int n_same = 0;

    if (kvcsa::status st = g.open(model); !st)
        return st;
    if (kvcsa::status st = play(g, n_frames, paced); !st)
        return st;
    if (kvcsa::status st = g.print_bytes(); !st)
        return st;
    if (kvcsa::status st = g.compare_with_alone(n_same); !st)
        return st;
    std::printf("Computed again alone and in one piece, %d of %d are the same bits.\n", n_same,
                n_characters);
    return n_same == n_characters ? kvcsa::status()
                                  : kvcsa::status::failure(KVCSA_ERR_INTERNAL, "slices differ");
}

} /* namespace */

int main(int argc, char **argv)
{
    const int n_frames = argc > 2 ? std::atoi(argv[2]) : 300;
    const bool paced = argc > 3 && std::strcmp(argv[3], "--paced") == 0;
    memory m;

    if (argc < 2 || argc > 4 || n_frames < 60 || n_frames > 100000 || (argc > 3 && !paced)) {
        std::fprintf(stderr, "usage: game_loop MODEL [FRAMES [--paced]]    FRAMES: 60 to 100000\n");
        return 2;
    }
    kvcsa::status st = run(argv[1], n_frames, paced, m);
    if (st && m.held != 0)
        st = kvcsa::status::failure(KVCSA_ERR_INTERNAL, "memory was not given back");
    if (!st) {
        std::fprintf(stderr, "game_loop: %s (%s)\n", st.text(), st.name());
        return 1;
    }
    std::printf("Memory: %lld bytes at the peak, %lld left after release.\n",
                static_cast<long long>(m.peak), static_cast<long long>(m.held));
    return 0;
}
