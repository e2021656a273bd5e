/* kvcsa.hpp: the five-minute tour, and what the header promises. check_cpp.sh compiles it in every mode and runs it.
 *
 *   test_cpp MODEL FOLDER      FOLDER is for snapshots
 *
 * With TEST_CPP_OTHER it is the second file of the program instead: what another part of a host, built with other flags, does
 * with the same types. */
#include <kvcsa.hpp>

namespace other {
kvcsa::status feed(kvcsa::pool &pool, kvcsa::session &session, kvcsa::tokens_view ids);
kvcsa::result<kvcsa::session> branch(kvcsa::session &session);
int language() noexcept;
} // namespace other

#ifdef TEST_CPP_OTHER
kvcsa::status other::feed(kvcsa::pool &pool, kvcsa::session &session, kvcsa::tokens_view ids)
{
    const auto length = session.append(ids);
    return length ? pool.step(session) : length.error();
}
kvcsa::result<kvcsa::session> other::branch(kvcsa::session &session) { return session.fork(); }
int other::language() noexcept { return KVCSA_HPP_EXCEPTIONS ? 1 : 0; }
#else

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

namespace {

int n_bad = 0; // of the test that runs
const char *model_path, *folder;

void check(bool good, const char *what, int line)
{
    if (!good) {
        std::printf("    test_cpp.cc:%d: not so: %s\n", line, what);
        n_bad++;
    }
}
#define CHECK(x) check(static_cast<bool>(x), #x, __LINE__)

// A value, or the test's failure with the library's words; an empty one then.
template <class T> T want(kvcsa::result<T> r, const char *what, int line)
{
    if (!r)
        std::printf("    %s\n", r.error().text());
    check(r.ok(), what, line);
    return std::move(r).value();
}
void want(const kvcsa::status &s, const char *what, int line)
{
    if (!s)
        std::printf("    %s\n", s.text());
    check(s.ok(), what, line);
}
#define WANT(x) want((x), #x, __LINE__)

const std::string_view opening =
    "In the beginning the men of the ship came to the captain, and they said unto him, Where is the land that thou hast spoken "
    "of? And he answered and said, It is beyond the sea; and there is bread, and water, and a great multitude of fishes. And the "
    "night was dark, and the wind was from the north, and no man slept. Then said the mate, Let us turn back, for the whale is "
    "before us. But the captain stood upon the deck until the morning, and he spake not a word; and when the sun was risen they "
    "saw the land.";

std::string path_of(const char *name) { return std::string(folder) + "/" + name; }

struct host { // what most tests need
    kvcsa::model   model = WANT(kvcsa::model::open(model_path));
    kvcsa::pool    pool = WANT(kvcsa::pool::create(params()));
    kvcsa::session session() { return WANT(kvcsa::session::create(pool, model)); }
    kvcsa::buffer<std::int32_t> ids(std::string_view text) { return WANT(model.tokenize(text)); }

    kvcsa::session read(kvcsa::tokens_view t)
    {
        kvcsa::session s = session();
        WANT(s.append(t));
        WANT(pool.step(s));
        return s;
    }
    // The likeliest tokens behind what a session holds.
    std::vector<std::int32_t> write(kvcsa::session &s, int n)
    {
        std::vector<std::int32_t> made;
        for (int i = 0; i < n && n_bad == 0; i++) {
            made.push_back(WANT(s.sample()));
            WANT(s.append(made.back()));
            WANT(pool.step(s));
        }
        return made;
    }
    static kvcsa::pool_params params()
    {
        kvcsa::pool_params p;
        p.n_threads = 2;
        p.backend = KVCSA_BACKEND_CPU;
        return p;
    }
};

// Open, share a prefix, fork, save, restore, measure.
void test_tour()
{
    host h;
    const auto info = WANT(h.model.info());
    CHECK(info.vocab_tokens > 0 && std::string_view(info.architecture) == "DeepseekV41ForCausalLM");

    // Two conversations that begin alike: the second one adopts what the first has computed.
    std::array<kvcsa_message, 2> talk = {{{"system", opening.data()}, {"user", "Where is the captain?"}}};
    const auto first = WANT(h.model.chat_prompt(talk));
    talk[1].text = "Who has seen the white whale?";
    const auto second = WANT(h.model.chat_prompt(talk));
    kvcsa::session a = h.read(first);
    kvcsa::session b = h.session();
    CHECK(WANT(b.append(second)) == second.size());
    const auto reuse = WANT(b.reuse());
    CHECK(reuse.n_adopted > 0 && reuse.n_adopted + reuse.n_compute == second.size());
    std::array<kvcsa::session *, 2> both = {&a, &b};
    WANT(h.pool.step(both));
    CHECK(b.length() == second.size());

    // A fork shares every block, and goes its own way.
    const auto rest = h.ids(" And the men of the ship said, ");
    WANT(b.append(rest));
    WANT(h.pool.step(b));
    kvcsa::session fork = WANT(b.fork());
    const auto words = h.write(b, 12);
    CHECK(h.write(fork, 12) == words);
    kvcsa::text_stream stream = WANT(kvcsa::text_stream::create(h.model));
    std::string text;
    for (std::int32_t t : words)
        text += WANT(stream.push(t));
    text += WANT(stream.finish());
    CHECK(!text.empty());

    // Saved, and restored into another pool, it goes on the same way.
    kvcsa::snapshot_params how;
    how.flags = KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS;
    const auto saved = WANT(b.save(path_of("tour.kvcsa"), how));
    CHECK(saved.n_tokens == b.length());
    CHECK(WANT(kvcsa::inspect_snapshot(path_of("tour.kvcsa"))).n_tokens == b.length());
    host later;
    kvcsa::session c = later.session();
    WANT(c.load(path_of("tour.kvcsa")));
    CHECK(later.write(c, 12) == h.write(b, 12));
    WANT(kvcsa::remove_snapshot(path_of("tour.kvcsa")));

    // What does a saving change? Windows alone, against everything.
    kvcsa::session_params less;
    less.flags = KVCSA_SESSION_WINDOW_ONLY;
    kvcsa::setting exact, window;
    exact.model = window.model = h.model.get();
    exact.pool = window.pool = h.pool.get();
    window.session = &less;
    const std::array<kvcsa_setting, 2> tests = {exact, window};
    std::array<kvcsa::compare, 2> to = {WANT(kvcsa::compare::create()), WANT(kvcsa::compare::create())};
    std::uint64_t rows_done = 0;
    WANT(kvcsa::compare_text(exact, tests, to, second, 0, [&](std::uint64_t n, std::uint64_t) { rows_done = n; }));
    const auto same = WANT(to[0].figures()), changed = WANT(to[1].figures());
    CHECK(same.n_rows > 0 && same.n_equal_rows == same.n_rows && same.kl_max <= 0);
    CHECK(changed.n_rows == same.n_rows && changed.kl_mean > 0);
    CHECK(rows_done > 0);
    CHECK(WANT(to[1].rows()).size() == changed.n_rows);
    WANT(kvcsa::compare_greedy(exact, tests, to, first, 6));
    CHECK(WANT(to[0].greedy()).size() == 1 && WANT(to[0].greedy())[0] == 6);
    const auto cost = WANT(h.model.cost(second.size()));
    CHECK(cost.resident_bytes > 0 && cost.n_tokens == second.size());
    WANT(h.pool.check());
}

void test_handles_move()
{
    host h;
    kvcsa::session a = h.read(h.ids(opening));
    kvcsa_session *raw = a.get();
    kvcsa::session b = std::move(a);
    CHECK(!a && b.get() == raw && a.length() == 0);
    a = std::move(b);
    CHECK(a.get() == raw && !b);
    kvcsa::session &self = a;
    a = std::move(self);
    CHECK(a.get() == raw);
    std::vector<kvcsa::session> many;
    for (int i = 0; i < 40; i++) // more than a list of sessions holds without the heap
        many.push_back(WANT(a.fork()));
    for (auto &s : many)
        WANT(s.append(5));
    std::vector<kvcsa_step_result> results(many.size());
    WANT(h.pool.step(many, kvcsa::step_params(), results));
    CHECK(std::all_of(results.begin(), results.end(), [](auto &r) { return r.n_computed == 1 && r.n_queued == 0; }));
    CHECK(h.pool.step(many, kvcsa::step_params(), kvcsa::view<kvcsa_step_result>(results).first(3)).code() == KVCSA_ERR_ARG);
    // Children keep their parents.
    h.model.reset();
    h.pool.reset();
    CHECK(!h.model && many.back().length() == a.length() + 1);
    kvcsa_session *given = a.detach();
    CHECK(given == raw && !a);
    kvcsa_session_release(&given);
    static_assert(!std::is_copy_constructible_v<kvcsa::session> && std::is_nothrow_move_constructible_v<kvcsa::session>);
    static_assert(sizeof(kvcsa::session) == sizeof(void *), "a handle is a pointer");
}

void test_errors_are_values()
{
    const auto missing = kvcsa::model::open(path_of("nothing"));
    CHECK(!missing && missing.error().code() == KVCSA_ERR_IO && missing.error().detail() != 0);
    CHECK(std::string_view(missing.error().name()) == "KVCSA_ERR_IO" && *missing.error().text());
    CHECK(!missing->get()); // an empty value, not a crash

    host h;
    kvcsa::session s = h.read(h.ids(opening));
    const auto length = s.length();
    CHECK(s.append(-7).error().code() == KVCSA_ERR_ARG && s.length() == length);
    CHECK(s.rewind(length + 1).code() == KVCSA_ERR_ARG);
    std::array<float, 3> few = {};
    CHECK(s.logits(few).code() == KVCSA_ERR_ARG);
    CHECK(kvcsa::session().append(1).error().code() == KVCSA_ERR_ARG);
    CHECK(h.pool.step(kvcsa::session()).code() == KVCSA_ERR_ARG);
    CHECK(s.mass().error().code() == KVCSA_ERR_ARG);
    CHECK(kvcsa::compare().begin().code() == KVCSA_ERR_ARG);
    CHECK(kvcsa::result<int>(kvcsa::status()).error().code() == KVCSA_ERR_ARG); // OK is no failure
    CHECK(kvcsa::result<int>(kvcsa::status::failure(KVCSA_ERR_FULL, "full")).value_or(4) == 4);
    const std::string lengthy(1000, 'x');
    CHECK(std::strlen(kvcsa::status::failure(KVCSA_ERR_FULL, lengthy).text()) == sizeof(kvcsa_error::text) - 1);
    // A chain stops at the first failure.
    int n = 0;
    const auto chained = kvcsa::model::open(path_of("nothing")).and_then([&](kvcsa::model m) {
        n++;
        return m.cost(1);
    });
    CHECK(n == 0 && chained.error().code() == KVCSA_ERR_IO);
    CHECK(kvcsa::model::open(model_path).and_then([](kvcsa::model m) { return m.cost(100); }).ok());
}

void test_text_and_tokens()
{
    host h;
    const auto ids = h.ids(opening);
    CHECK(WANT(h.model.detokenize(ids)).str() == opening);
    std::string all;
    for (std::int32_t t : ids)
        all += WANT(h.model.token_text(t));
    CHECK(all == opening);
    CHECK(h.ids("").empty() && WANT(h.model.detokenize({})).empty());
    // Longer than the first guess: bytes of tokens, tokens of messages.
    std::string endless;
    while (endless.size() < 20000)
        endless += opening;
    const auto many = h.ids(endless);
    CHECK(WANT(h.model.detokenize(many)).str() == endless);
    std::array<kvcsa_message, 1> talk = {{{"user", endless.c_str()}}};
    CHECK(WANT(h.model.chat_prompt(talk)).size() > 512);
    // A stop string in the middle.
    const char *stops[] = {"captain"};
    kvcsa::text_stream stream = WANT(kvcsa::text_stream::create(h.model, stops));
    std::string shown;
    for (std::int32_t t : ids)
        shown += WANT(stream.push(t));
    CHECK(stream.stopped() == 0 && shown == opening.substr(0, opening.find("captain")));

    kvcsa::session s = h.read(ids);
    const auto held = WANT(s.tokens());
    CHECK(std::equal(held.begin(), held.end(), ids.begin(), ids.end()));
    CHECK(WANT(s.tokens(3)).size() == ids.size() - 3 && WANT(s.common_prefix(ids)) == ids.size());
    CHECK(s.tokens(s.length() + 1).error().code() == KVCSA_ERR_ARG);
    const auto more = WANT(s.sync(kvcsa::tokens_view(ids).first(5)));
    CHECK(more.n_kept == 5);
    WANT(h.pool.step(s));
    CHECK(s.length() == 5);
    std::vector<float> logits(WANT(h.model.info()).vocab_tokens);
    WANT(s.logits(logits));
    CHECK(WANT(kvcsa::sample_logits(logits, s.length())) == WANT(s.sample()));
}

void test_views()
{
    std::vector<std::int32_t> v = {1, 2, 3};
    const kvcsa::tokens_view from_vector = v;
    std::int32_t array[] = {1, 2};
    const kvcsa::view<std::int32_t> writable = array;
    const kvcsa::tokens_view narrowed = writable; // to const, as a pointer does
    CHECK(from_vector.size() == 3 && narrowed.size() == 2 && from_vector[2] == 3 && from_vector.data() == v.data());
    CHECK(from_vector.first(9).size() == 3 && from_vector.from(2).size() == 1 && from_vector.from(9).empty());
    static_assert(!std::is_convertible_v<kvcsa::tokens_view, kvcsa::view<std::int32_t>>, "not from const");
    static_assert(!std::is_convertible_v<std::vector<float>, kvcsa::tokens_view>, "not of another type");
#if __cplusplus >= 202002L
    const std::span<const std::int32_t> span = from_vector;
    const kvcsa::tokens_view back = span;
    CHECK(back.data() == v.data() && back.size() == 3);
#endif
    kvcsa::buffer<std::int32_t> b;
    CHECK(b.append(v) && b.push_back(4) && b.size() == 4 && b[3] == 4);
    CHECK(b.resize(6) && b[5] == 0 && b[0] == 1);
    CHECK(!b.resize(static_cast<std::size_t>(-1) / 4) && b.size() == 6);
    kvcsa::buffer<std::int32_t> c = std::move(b);
    CHECK(b.empty() && c.size() == 6);
}

void test_prefixes_are_pinned_by_scope()
{
    host h;
    std::string text;
    for (int i = 0; i < 4; i++)
        text += opening;
    const auto ids = h.ids(text);
    kvcsa::session s = h.read(ids);
    const auto known = h.pool.prefixes(h.model);
    CHECK(WANT(known.match(ids)) > 0 && WANT(h.pool.stats()).n_pinned_blocks == 0);
    {
        kvcsa::pin a = WANT(known.pin(ids));
        CHECK(a.n_tokens() > 0 && WANT(h.pool.stats()).n_pinned_blocks > 0);
        kvcsa::pin b = std::move(a);
        a = std::move(b);
        b = WANT(known.pin(ids));
    }
    CHECK(WANT(h.pool.stats()).n_pinned_blocks == 0);
    s.reset();
    CHECK(WANT(h.pool.trim()) > 0 && WANT(known.match(ids)) == 0);

    kvcsa::session_params mine;
    mine.flags = KVCSA_SESSION_PRIVATE;
    s = WANT(kvcsa::session::create(h.pool, h.model, mine));
    WANT(s.append(ids));
    WANT(h.pool.step(s));
    CHECK(WANT(known.match(ids)) == 0 && WANT(s.publish()) > 0 && WANT(known.match(ids)) > 0);
    WANT(known.forget(ids));
    CHECK(WANT(known.match(ids)) == 0);
    CHECK(WANT(s.publish()) > 0);
    WANT(h.pool.forget_all());
    CHECK(WANT(known.match(ids)) == 0);
}

void test_callbacks()
{
    host h;
    const auto ids = h.ids(opening);
    // Logits of every row are those that sampling sees.
    kvcsa::session a = h.session();
    std::vector<std::uint64_t> positions;
    std::int32_t best = -1;
    auto rows = kvcsa::on_logits([&](std::uint64_t position, kvcsa::view<const float> l) {
        positions.push_back(position);
        best = static_cast<std::int32_t>(std::max_element(l.begin(), l.end()) - l.begin());
    });
    WANT(a.append(ids, rows.all()));
    std::uint64_t calls = 0;
    WANT(h.pool.step(a, [&](kvcsa_session *s, std::uint64_t, std::uint64_t) { calls += s == a.get(); }));
    CHECK(positions.size() == ids.size() && positions.back() == ids.size() - 1 && best == WANT(a.sample()) && calls > 0);
    const std::int32_t word = best;
    const std::uint32_t chosen[] = {1, 4};
    kvcsa::session b = h.session();
    positions.clear();
    WANT(b.append(ids, rows.rows(chosen)));
    WANT(h.pool.step(b));
    CHECK((positions == std::vector<std::uint64_t>{1, 4}));

    // A step in slices: time, rows, and an answer of the lambda.
    kvcsa::session c = h.session();
    WANT(c.append(ids));
    kvcsa::step_params slice;
    slice.max_rows = 7;
    std::array<kvcsa_step_result, 1> left = {};
    int n_slices = 0;
    do {
        WANT(h.pool.step(c, slice, left));
        n_slices++;
    } while (left[0].n_queued > 0 && n_slices < 1000);
    CHECK(n_slices > 1 && c.length() == ids.size() && WANT(c.sample()) == word);
    const auto before = c.length();
    WANT(c.append(ids));
    const auto stopped = h.pool.step(c, [](kvcsa_session *, std::uint64_t, std::uint64_t) { return kvcsa::next::cancel; });
    CHECK(stopped.code() == KVCSA_ERR_CANCELLED && !stopped.thrown() && c.length() == before);

    // Snapshots through memory.
    std::vector<std::byte> bytes;
    WANT(a.write([&](kvcsa::view<const std::byte> v) { bytes.insert(bytes.end(), v.begin(), v.end()); }));
    CHECK(bytes.size() == WANT(a.snapshot_size()));
    std::size_t at = 0;
    const auto reader = [&](kvcsa::view<std::byte> room) {
        const std::size_t n = std::min(room.size(), bytes.size() - at);
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), n, room.begin());
        at += n;
        return n;
    };
    kvcsa::session d = h.session();
    WANT(d.read(reader));
    WANT(h.pool.step(d));
    CHECK(d.length() == a.length() && WANT(d.sample()) == word);
    bytes[bytes.size() / 2] ^= std::byte{1};
    at = 0;
    host fresh; // a pool that knows the blocks would not read them
    kvcsa::session e = fresh.session();
    CHECK(e.read(reader).error().code() == KVCSA_ERR_CORRUPT && e.length() == 0);
    CHECK(a.write([](kvcsa::view<const std::byte>) { return 28; }).error().detail() == 28);
}

struct counted { // an allocator with a balance
    std::atomic<std::size_t> held{0}, n{0};
    void *allocate(std::size_t size, std::size_t align) noexcept
    {
        void *p = ::operator new(size, std::align_val_t(align), std::nothrow);
        held += p ? size : 0;
        n++;
        return p;
    }
    void deallocate(void *p, std::size_t size, std::size_t align) noexcept
    {
        held -= p ? size : 0;
        ::operator delete(p, std::align_val_t(align), std::nothrow);
    }
};

void test_hooks()
{
    counted memory;
    kvcsa::allocator_hook<counted> hook(memory);
    std::atomic<int> n_lines{0}, n_hits{0}, n_runs{0};
    std::mutex lock;
    std::set<std::thread::id> seen;
    auto log = kvcsa::on_log([&](std::int32_t, const char *) { n_lines++; });
    auto trace = kvcsa::on_trace([&](const kvcsa_trace_event &e) { n_hits += e.kind == KVCSA_TRACE_HIT; });
    auto threads = kvcsa::make_executor(2, [&](std::uint32_t n, kvcsa::executor_task task) noexcept {
        std::thread half([&] {
            for (std::uint32_t i = 0; i < n; i += 2)
                task(i);
        });
        for (std::uint32_t i = 1; i < n; i += 2)
            task(i);
        half.join();
        n_runs++;
        const std::lock_guard<std::mutex> hold(lock);
        seen.insert(std::this_thread::get_id());
    });
    std::int32_t word = -1;
    {
        kvcsa::model_params mp;
        mp.allocator = hook.get();
        mp.log = log.get();
        kvcsa::model model = WANT(kvcsa::model::open(model_path, mp));
        kvcsa::pool_params pp = host::params();
        pp.allocator = hook.get();
        pp.log = log.get();
        pp.trace = trace.get();
        pp.executor = threads.get();
        kvcsa::pool pool = WANT(kvcsa::pool::create(pp));
        const auto ids = WANT(model.tokenize(opening));
        for (int i = 0; i < 2; i++) {
            kvcsa::session s = WANT(kvcsa::session::create(pool, model));
            WANT(s.append(ids));
            WANT(pool.step(s));
            word = WANT(s.sample());
        }
        const auto c = WANT(kvcsa::compare::create(hook.get()));
        CHECK(memory.held > 0 && memory.n > 10);
    }
    CHECK(memory.held == 0 && n_runs > 0 && n_hits > 0);
    host h;
    kvcsa::session s = h.read(h.ids(opening));
    CHECK(WANT(s.sample()) == word);
#if defined(__cpp_lib_memory_resource)
    kvcsa::pmr_allocator pmr(*std::pmr::new_delete_resource());
    kvcsa::pool_params pp = host::params();
    pp.allocator = pmr.get();
    CHECK(WANT(kvcsa::pool::create(pp)));
#if KVCSA_HPP_EXCEPTIONS
    kvcsa::pmr_allocator none(*std::pmr::null_memory_resource()); // throws at every call
    pp.allocator = none.get();
    CHECK(kvcsa::pool::create(pp).error().code() == KVCSA_ERR_NOMEM);
#endif
#endif
}

void test_everything_else()
{
    host h;
    CHECK(kvcsa::version_number() >= KVCSA_VERSION_NUMBER && std::string_view(kvcsa::version_string()).size() >= 5);
    CHECK(std::string_view(kvcsa::format_name(KVCSA_FORMAT_BF16)) == "bf16");
    CHECK(WANT(h.pool.cpu()).processor == std::string_view(WANT(kvcsa::pool().cpu()).processor));
    CHECK(WANT(h.pool.backend()).reference == 1);
    CHECK(WANT(h.model.plan_row(0)).layer == 0 && h.model.plan_row(1u << 20).error().code() == KVCSA_ERR_ARG);
    CHECK(WANT(h.model.estimate(100, 4, 50)).used_bytes > 0);
    kvcsa::serving_params serving;
    serving.n_tokens = 1000;
    CHECK(WANT(h.model.serving_cost(serving)).resident_bytes > 0);
    kvcsa::resume_params resume;
    resume.n_tokens = 1000;
    resume.tier_bytes_per_second = resume.flops_per_second = 1e9;
    resume.flops_per_token = 1e6;
    CHECK(WANT(h.model.resume_cost(resume)).n_bytes > 0);
    kvcsa::agent_params agent;
    agent.n_calls = 3;
    agent.tool_tokens = agent.generated_tokens = agent.context_tokens = 10;
    CHECK(WANT(kvcsa::agent_cost(agent)).n_output_tokens == 30);
    CHECK(WANT(kvcsa::synth_checkpoint(std::string(model_path) + "/config.json", nullptr)).total_bytes > 0);

    WANT(h.pool.resize(1u << 26));
    CHECK(WANT(h.pool.stats()).budget_bytes == 1u << 26);
    kvcsa::session_params track;
    track.flags = KVCSA_SESSION_TRACK_MASS;
    kvcsa::session s = WANT(kvcsa::session::create(h.pool, h.model, track));
    const auto ids = h.ids(opening);
    WANT(s.append(ids));
    WANT(h.pool.step(s));
    const auto mass = WANT(s.mass(true));
    double sum = 0;
    for (double m : mass)
        sum += m;
    CHECK(!mass.empty() && sum > 0);
    for (double m : WANT(s.mass()))
        CHECK(m <= 0);
    CHECK(WANT(s.layer_work(0)).total.n_rows == ids.size() && WANT(s.stats()).n_tokens == ids.size());
    const auto span = WANT(h.model.info()).span_tokens;
    WANT(s.hide(0, span));
    WANT(s.show(0, span));
    WANT(s.append(ids));
    s.cancel();
    CHECK(h.pool.step(s).code() == KVCSA_ERR_CANCELLED && s.length() == ids.size());
    WANT(s.erase(KVCSA_ERASE_SECURE));
    CHECK(s.length() == 0);
    kvcsa::session().cancel(); // harmless

    kvcsa::compare c = WANT(kvcsa::compare::create());
    const float even[] = {0, 0, 0}, one[] = {1, 0, 0};
    WANT(c.begin());
    WANT(c.add(0, 0, even, one));
    CHECK(c.add(0, 0, even, kvcsa::view<const float>(one).first(2)).code() == KVCSA_ERR_ARG);
    WANT(c.add_greedy(ids, ids));
    CHECK(WANT(c.figures()).n_rows == 1 && WANT(c.figures()).kl_mean > 0);
}

// A host's own network: two layers of grouped heads whose rows depend on the token and its position.
struct own {
    static constexpr std::uint32_t n_layers = 2, kv_heads = 2, n_heads = 4, width = 32, block = 16;
    enum { KEY, VALUE, QUERY };
    kvcsa::model model = WANT(kvcsa::model::from_plan(rows(), params(1)));
    kvcsa::pool  pool = WANT(kvcsa::pool::create(host::params()));

    static std::array<kvcsa_plan_row, n_layers> rows()
    {
        return {kvcsa::heads_row(0, kv_heads, width), kvcsa::heads_row(1, kv_heads, width)};
    }
    static kvcsa::plan_params params(std::uint64_t identity)
    {
        kvcsa::plan_params p;
        p.block_tokens = block;
        p.identity = identity;
        return p;
    }
    kvcsa::session session(kvcsa::pool &in)
    {
        kvcsa::session_params p;
        p.flags = KVCSA_SESSION_CACHE_ONLY;
        return WANT(kvcsa::session::create(in, model, p));
    }
    static float channel(int what, std::uint32_t layer, std::int32_t token, std::uint64_t position, std::uint32_t c)
    {
        const double x = 0.7 * token + 1.3 * c + 0.9 * layer + 2.1 * what + 0.05 * static_cast<double>(position) * (1 + c % 3);
        return static_cast<float>(std::sin(x));
    }
    static std::vector<float> make(int what, std::uint32_t layer, kvcsa::tokens_view t, std::uint64_t first, std::uint32_t heads)
    {
        std::vector<float> v;
        for (std::size_t i = 0; i < t.size(); i++)
            for (std::uint32_t c = 0; c < heads * width; c++)
                v.push_back(channel(what, layer, t[i], first + i, c));
        return v;
    }
    // Largest difference between a row of attention and a plain softmax over the text up to it.
    static double error(const float *out, std::uint32_t layer, kvcsa::tokens_view text, std::uint64_t position, std::uint32_t head)
    {
        const std::uint32_t at = head / (n_heads / kv_heads) * width;
        std::vector<double> w(position + 1), sum(width);
        double              top = -1e9, total = 0, worst = 0;

        for (std::uint64_t j = 0; j <= position; j++) {
            for (std::uint32_t c = 0; c < width; c++)
                w[j] += static_cast<double>(channel(QUERY, layer, text[position], position, head * width + c)) *
                        static_cast<double>(channel(KEY, layer, text[j], j, at + c)) / std::sqrt(32.0);
            top = std::max(top, w[j]);
        }
        for (std::uint64_t j = 0; j <= position; j++) {
            total += w[j] = std::exp(w[j] - top);
            for (std::uint32_t c = 0; c < width; c++)
                sum[c] += w[j] * static_cast<double>(channel(VALUE, layer, text[j], j, at + c));
        }
        for (std::uint32_t c = 0; c < width; c++)
            worst = std::max(worst, std::abs(sum[c] / total - static_cast<double>(out[head * width + c])));
        return worst;
    }
    static void write(kvcsa::chunk &chunk)
    {
        for (std::uint32_t l = 0; l < n_layers; l++) {
            const auto k = make(KEY, l, chunk.tokens(), chunk.position(), kv_heads);
            const auto v = make(VALUE, l, chunk.tokens(), chunk.position(), kv_heads);
            WANT(chunk.write(l, kvcsa::rows(k), kvcsa::rows(v)));
        }
    }
    // All that is queued of a session that is to hold `text`; how many rows that was.
    std::size_t compute(kvcsa::session &s, kvcsa::tokens_view text, std::uint32_t max_rows = 0)
    {
        std::size_t n = 0;
        while (n_bad == 0) {
            kvcsa::chunk chunk = WANT(s.chunk(max_rows));
            if (!chunk)
                break;
            CHECK(!chunk.replay() && chunk.first_rows() != nullptr && chunk.rows() == chunk.tokens().size());
            CHECK(std::equal(chunk.tokens().begin(), chunk.tokens().end(), text.from(chunk.position()).begin()));
            write(chunk);
            for (std::uint32_t l = 0; l < n_layers; l++) {
                const auto         q = make(QUERY, l, chunk.tokens(), chunk.position(), n_heads);
                std::vector<float> out(q.size());
                WANT(chunk.attend(l, kvcsa::rows(q), n_heads, out));
                for (std::uint32_t i = 0; i < chunk.rows(); i++)
                    for (std::uint32_t h = 0; h < n_heads; h++) // f32 sums of at most 64 terms, and the exponent's error
                        CHECK(error(&out[i * n_heads * width], l, text, chunk.position() + i, h) < 2e-5);
            }
            n += chunk.rows();
            WANT(chunk.commit());
            CHECK(!chunk && chunk.tokens().empty());
        }
        CHECK(s.length() == text.size());
        return n;
    }
};

std::vector<std::int32_t> own_text()
{
    std::vector<std::int32_t> t;
    for (int i = 0; i < 45; i++)
        t.push_back(3 + i * i % 41);
    return t;
}

void test_own_network()
{
    own        o;
    const auto text = own_text();
    CHECK(std::string_view(WANT(o.model.info()).architecture) == "plan" && WANT(o.model.plan_row(1)).kv_owner == 1);
    kvcsa::session a = o.session(o.pool);
    WANT(a.append(text));
    CHECK(o.compute(a, text, 7) == text.size());

    // A second session adopts what the first has computed.
    std::vector<std::int32_t> other(text.begin(), text.begin() + 36);
    other.insert(other.end(), {1, 2, 3});
    kvcsa::session b = o.session(o.pool);
    WANT(b.append(other));
    const std::size_t n_computed = o.compute(b, other);
    const auto        reuse = WANT(b.reuse());
    CHECK(reuse.n_adopted >= 2 * own::block && reuse.n_adopted + n_computed == other.size());

    // Fork, rewind, save and load.
    std::vector<std::int32_t> branch(text.begin(), text.begin() + 21);
    kvcsa::session            f = WANT(a.fork(21));
    branch.insert(branch.end(), {9, 8});
    WANT(f.append(kvcsa::tokens_view(branch).from(21)));
    CHECK(o.compute(f, branch) == 2);
    WANT(f.rewind(18));
    branch.resize(18);
    branch.push_back(4);
    WANT(f.append(4));
    CHECK(o.compute(f, branch) == 1);
    WANT(a.save(path_of("own.kvcsa")));
    kvcsa::pool    elsewhere = WANT(kvcsa::pool::create(host::params()));
    kvcsa::session c = o.session(elsewhere);
    CHECK(WANT(c.load(path_of("own.kvcsa"))).n_tokens == text.size());
    auto longer = text;
    longer.push_back(11);
    WANT(c.append(11));
    CHECK(o.compute(c, longer) <= own::block + 1);
    const auto stranger = WANT(kvcsa::model::from_plan(own::rows(), own::params(2)));
    CHECK(WANT(o.pool.prefixes(stranger).match(text)) == 0 && WANT(o.pool.prefixes(o.model).match(text)) > 0);

    // What was written can be read, and strides are those of the caller.
    std::vector<float> keys(3 * own::kv_heads * own::width);
    WANT(a.read_rows(1, KVCSA_READ_KEYS, 40, 3, keys));
    CHECK(keys == own::make(own::KEY, 1, kvcsa::tokens_view(text).from(40).first(3), 40, own::kv_heads));
    CHECK(a.read_rows(1, KVCSA_READ_KEYS, 40, 3, kvcsa::view<float>(keys).first(5)).code() == KVCSA_ERR_ARG);
    WANT(o.pool.check());
}

void test_chunks_end()
{
    own            o;
    const auto     text = own_text();
    kvcsa::session s = o.session(o.pool);
    WANT(s.append(text));
    {
        kvcsa::chunk dropped = WANT(s.chunk());
        own::write(dropped);
        CHECK(s.append(1).error().code() == KVCSA_ERR_BUSY && s.chunk().error().code() == KVCSA_ERR_BUSY);
    }
    CHECK(s.length() == 0); // as if nothing had been
    kvcsa::chunk a = WANT(s.chunk(5));
    CHECK(a && a.rows() == 5 && a.position() == 0 && a.n_queued() == 40);
    CHECK(a.commit().code() == KVCSA_ERR_ARG && a); // nothing is written: it stays open
    kvcsa::chunk b = std::move(a);
    CHECK(!a && a.tokens().empty() && a.commit().code() == KVCSA_ERR_ARG && b.tokens().size() == 5);
    own::write(b);
    const std::vector<float> q(5 * own::n_heads * own::width), sink(own::n_heads - 1);
    std::vector<float>       out(q.size());
    CHECK(b.attend(0, kvcsa::rows(q), own::n_heads, out, sink).code() == KVCSA_ERR_ARG);
    CHECK(b.attend(0, kvcsa::rows(q), own::n_heads - 1, out).code() == KVCSA_ERR_ARG);
    CHECK(b.select(0, kvcsa::rows(q), kvcsa::rows(sink)).code() == KVCSA_ERR_ARG); // no selection is made here
    WANT(b.commit());
    CHECK(s.length() == 5 && b.write(0, kvcsa::chunk_rows()).code() == KVCSA_ERR_ARG);
    kvcsa::chunk next = WANT(s.chunk(5));
    CHECK(b.write(0, kvcsa::rows(q), kvcsa::rows(q)).code() == KVCSA_ERR_ARG); // the old one does not reach it
    next = kvcsa::chunk();                                                    // abandoned
    CHECK(o.compute(s, text) == 40 && !WANT(s.chunk()));
    s.cancel();
    CHECK(kvcsa::session().chunk().error().code() == KVCSA_ERR_ARG);
    CHECK(kvcsa::model::from_plan({}).error().code() == KVCSA_ERR_ARG);
    auto wrong = own::rows();
    wrong[1].kv_owner = 7;
    CHECK(kvcsa::model::from_plan(wrong).error().code() == KVCSA_ERR_FORMAT);

    // A window and a selection.
    auto sparse = kvcsa::sparse_row(0, own::width, 1, 16, 4);
    sparse.index_heads = 2;
    sparse.index_width = 32;
    const kvcsa_plan_row plan[] = {sparse};
    o.model = WANT(kvcsa::model::from_plan(plan));
    s = o.session(o.pool);
    WANT(s.append(text));
    kvcsa::chunk all = WANT(s.chunk());
    const auto   latent = own::make(own::KEY, 0, all.tokens(), 0, 1), query = own::make(own::QUERY, 0, all.tokens(), 0, 2);
    kvcsa::chunk_rows rows;
    rows.key = rows.index_key = rows.window = kvcsa::rows(latent);
    WANT(all.write(0, rows));
    std::vector<std::int32_t> ids(text.size() * 4, -7);
    const std::vector<float>  weights(text.size() * 2, 1.0f);
    WANT(all.select(0, kvcsa::rows(query), kvcsa::rows(weights), ids));
    for (std::size_t i = 0; i < text.size(); i++)
        for (std::size_t k = 0; k < 4; k++)
            CHECK(k > i ? ids[i * 4 + k] == -1 : ids[i * 4 + k] <= static_cast<int>(i) && (!k || ids[i * 4 + k] > ids[i * 4 + k - 1]));
    std::vector<float> mixed(query.size(), 9.0f);
    WANT(all.attend(0, kvcsa::rows(query), 2, mixed));
    CHECK(std::all_of(mixed.begin(), mixed.end(), [](float x) { return std::abs(x) <= 1.1f; })); // a mean of what is below 1
    WANT(all.commit());
    CHECK(s.length() == text.size());
}

// Types cross from a file that was built with other flags.
void test_other_flags()
{
    host h;
    const auto ids = h.ids(opening);
    kvcsa::session s = h.session();
    WANT(other::feed(h.pool, s, ids));
    kvcsa::session fork = WANT(other::branch(s));
    CHECK(h.write(fork, 8) == h.write(s, 8));
    CHECK(other::feed(h.pool, s, std::vector<std::int32_t>{-1}).code() == KVCSA_ERR_ARG);
    CHECK(other::language() == 0); // built without exceptions
}

#if KVCSA_HPP_EXCEPTIONS
struct trouble {
    int n;
};
template <class F> int caught(F &&f)
{
    try {
        f();
    } catch (const trouble &t) {
        return t.n;
    } catch (...) {
        return -1;
    }
    return 0;
}

void test_throwing_layer()
{
    host h;
    const auto ids = kvcsa::or_throw(h.model.tokenize(opening));
    bool seen = false;
    try {
        kvcsa::or_throw(kvcsa::model::open(path_of("nothing")));
    } catch (const std::exception &e) {
        const auto *f = dynamic_cast<const kvcsa::failure *>(&e);
        seen = f && f->code() == KVCSA_ERR_IO && f->detail() != 0 && std::strstr(e.what(), "KVCSA_ERR_IO");
    }
    CHECK(seen);

    // What a lambda throws in a step comes out of or_throw, and the session is as before.
    kvcsa::session s = h.session();
    kvcsa::or_throw(s.append(ids));
    auto thrower = [&](kvcsa_session *, std::uint64_t, std::uint64_t) { throw trouble{7}; };
    CHECK(caught([&] { kvcsa::or_throw(h.pool.step(s, thrower)); }) == 7);
    CHECK(s.length() == 0);
    kvcsa::or_throw(s.append(ids));
    const auto st = h.pool.step(s, thrower); // without or_throw: a status
    CHECK(st.code() == KVCSA_ERR_CANCELLED && st.thrown() && s.length() == 0);

    // Logits: no row after the one that threw; chunks that were not begun are not computed.
    kvcsa::session_params small;
    small.chunk_tokens = 8;
    kvcsa::session t = WANT(kvcsa::session::create(h.pool, h.model, small));
    int n_rows = 0;
    auto rows = kvcsa::on_logits([&](std::uint64_t position, kvcsa::view<const float>) {
        n_rows++;
        if (position == 10)
            throw trouble{9};
    });
    kvcsa::or_throw(t.append(ids, rows.all()));
    CHECK(caught([&] { kvcsa::or_throw(h.pool.step(t)); }) == 9);
    CHECK(n_rows == 11 && t.length() == 0);
    kvcsa::or_throw(t.append(ids)); // it goes on as if nothing had been
    kvcsa::or_throw(h.pool.step(t));
    CHECK(h.write(t, 5) == [&] {
        kvcsa::session plain = h.read(ids);
        return h.write(plain, 5);
    }());
    // The same in a step that C code makes: the hook keeps it.
    kvcsa::session u = h.session();
    kvcsa::or_throw(u.append(ids, rows.all()));
    kvcsa_session *raw = u.get();
    CHECK(kvcsa_pool_step(h.pool.get(), &raw, 1, nullptr, nullptr, nullptr) == KVCSA_OK && rows.thrown());

    const auto writer = [](kvcsa::view<const std::byte>) { throw trouble{3}; };
    CHECK(caught([&] { kvcsa::or_throw(t.write(writer)); }) == 3);
    const auto reader = [](kvcsa::view<std::byte>) -> int { throw trouble{4}; };
    CHECK(caught([&] { kvcsa::or_throw(t.read(reader)); }) == 4);
    kvcsa::setting exact;
    exact.model = h.model.get();
    exact.pool = h.pool.get();
    const kvcsa_setting tests[] = {exact};
    kvcsa::compare to[] = {kvcsa::or_throw(kvcsa::compare::create())};
    auto counter = [](std::uint64_t, std::uint64_t) { throw trouble{5}; };
    CHECK(caught([&] { kvcsa::or_throw(kvcsa::compare_text(exact, tests, to, ids, 0, counter)); }) == 5);
    // A log that throws does no harm.
    auto log = kvcsa::on_log([](std::int32_t, const char *) { throw trouble{6}; });
    kvcsa::pool_params pp = host::params();
    pp.log = log.get();
    CHECK(kvcsa::pool::create(pp).ok());
    kvcsa::or_throw(h.pool.check());
}
#endif

struct test {
    const char *name;
    void (*run)();
};
const test tests[] = {
    {"tour", test_tour},
    {"handles_move", test_handles_move},
    {"errors_are_values", test_errors_are_values},
    {"text_and_tokens", test_text_and_tokens},
    {"views", test_views},
    {"prefixes_are_pinned_by_scope", test_prefixes_are_pinned_by_scope},
    {"callbacks", test_callbacks},
    {"hooks", test_hooks},
    {"everything_else", test_everything_else},
    {"own_network", test_own_network},
    {"chunks_end", test_chunks_end},
    {"other_flags", test_other_flags},
#if KVCSA_HPP_EXCEPTIONS
    {"throwing_layer", test_throwing_layer},
#endif
};

} // namespace

int main(int argc, char **argv)
{
    int n_passed = 0, n_failed = 0;

    if (argc != 3) {
        std::fprintf(stderr, "usage: test_cpp MODEL FOLDER\n");
        return 2;
    }
    model_path = argv[1];
    folder = argv[2];
    for (const test &t : tests) {
        n_bad = 0;
        t.run();
        std::printf("%-6s %s\n", n_bad ? "FAILED" : "ok", t.name);
        n_bad ? n_failed++ : n_passed++;
    }
    std::printf("%d passed, %d failed, 0 skipped\n", n_passed, n_failed);
    return n_failed || !n_passed;
}
#endif
