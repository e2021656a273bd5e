/* kvcsa for C++17: the functions of kvcsa.h as types that own what they hold. Header only.
 *
 *   model, pool, session, text_stream, compare   move-only handles; the destructor releases
 *   chunk               rows of a host's own network; the destructor abandons what is not committed
 *   status, result<T>   what a call answers: the error record, or a value
 *   view<T>             pointer and count; made from any contiguous container, std::span included
 *   buffer<T>           an array that a call has made
 *   or_throw(x)         the value, or an exception: only where exceptions are on
 *
 * Rules
 *   - No function throws or aborts, but for or_throw; what needs memory answers KVCSA_ERR_NOMEM.
 *     Works with -fno-exceptions -fno-rtti.
 *   - value() of a result that failed is an empty value (0, a null handle): reading it is harmless.
 *   - The thread rules are those of the C functions: kvcsa.h has a "Thread:" line for each.
 *   - Parameters are the C structs; the class of the same name without kvcsa_ has the defaults.
 *   - What a lambda throws does not enter the C code. It is kept, what is running is cancelled, and
 *     or_throw of that call's status rethrows it. Without exceptions a lambda must not fail so.
 *   - Code with and without exceptions, and of C++17 and C++20, may be linked together.
 * docs/guide-cpp.md is the tutorial. */
#ifndef KVCSA_HPP
#define KVCSA_HPP

#include <kvcsa.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#if defined(__has_include)
#if __has_include(<memory_resource>)
#include <memory_resource>
#endif
#endif
#if __cplusplus >= 202002L && defined(__has_include)
#if __has_include(<ranges>)
#include <ranges>
#endif
#endif

#if KVCSA_VERSION_NUMBER < 400
#error "kvcsa.hpp needs kvcsa.h of version 0.4 or later"
#endif

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define KVCSA_HPP_EXCEPTIONS 1
#else
#define KVCSA_HPP_EXCEPTIONS 0
#endif

namespace kvcsa {

/* ------------------------------------------------------------------ views and buffers */

/* Pointer and count, not owning. One type in C++17 and C++20, so that both can be linked together;
 * converts from and to std::span without being asked. */
template <class T> class view {
    template <class C>
    using element = std::remove_pointer_t<decltype(std::data(std::declval<C &>()))>;
    template <class C>
    using fits = std::enable_if_t<!std::is_same_v<std::remove_cv_t<C>, view> &&
                                      std::is_convertible_v<element<C> (*)[], T (*)[]>,
                                  decltype(std::size(std::declval<C &>()))>;

public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using iterator = T *;

    constexpr view() noexcept = default;
    constexpr view(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <class C, class = fits<C>>
    constexpr view(C &c) noexcept : data_(std::data(c)), size_(std::size(c))
    {
    }
    template <class C, class = fits<const C>>
    constexpr view(const C &c) noexcept : data_(std::data(c)), size_(std::size(c))
    {
    }

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t i) const noexcept { return data_[i]; }
    /* Cut to what there is, so they cannot point outside. */
    constexpr view first(std::size_t n) const noexcept { return {data_, n < size_ ? n : size_}; }
    constexpr view from(std::size_t i) const noexcept
    {
        return i < size_ ? view(data_ + i, size_ - i) : view(data_ + size_, 0);
    }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

using tokens_view = view<const std::int32_t>;

/* An array on the heap; empty after a move. */
template <class T> class buffer {
    static_assert(std::is_trivially_copyable_v<T>, "a buffer holds plain data");

public:
    using value_type = T;

    buffer() noexcept = default;
    buffer(buffer &&o) noexcept
        : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)),
          capacity_(std::exchange(o.capacity_, 0))
    {
    }
    buffer &operator=(buffer &&o) noexcept
    {
        buffer(std::move(o)).swap(*this);
        return *this;
    }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;
    ~buffer() { delete[] data_; }

    void swap(buffer &o) noexcept
    {
        std::swap(data_, o.data_);
        std::swap(size_, o.size_);
        std::swap(capacity_, o.capacity_);
    }
    T *data() noexcept { return data_; }
    const T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    T *begin() noexcept { return data_; }
    T *end() noexcept { return data_ + size_; }
    const T *begin() const noexcept { return data_; }
    const T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t i) noexcept { return data_[i]; }
    const T &operator[](std::size_t i) const noexcept { return data_[i]; }
    /* A buffer of char as text; valid as long as the buffer. */
    std::string_view str() const noexcept
    {
        static_assert(std::is_same_v<T, char>, "text is a buffer of char");
        return {data_, size_};
    }

    /* Keep what is there, up to n; new elements are zero. False: no memory, nothing changed. */
    bool resize(std::size_t n) noexcept
    {
        if (n > capacity_ && !grow(n > capacity_ * 2 ? n : capacity_ * 2))
            return false;
        for (std::size_t i = size_; i < n; i++)
            data_[i] = T{};
        size_ = n;
        return true;
    }
    bool push_back(T v) noexcept
    {
        if (!resize(size_ + 1))
            return false;
        data_[size_ - 1] = v;
        return true;
    }
    bool append(view<const T> v) noexcept
    {
        const std::size_t at = size_;
        if (!resize(at + v.size()))
            return false;
        for (std::size_t i = 0; i < v.size(); i++)
            data_[at + i] = v[i];
        return true;
    }

private:
    bool grow(std::size_t n) noexcept
    {
        if (n > static_cast<std::size_t>(-1) / 2 / sizeof(T))
            return false;
        T *p = new (std::nothrow) T[n];
        if (!p)
            return false;
        for (std::size_t i = 0; i < size_; i++)
            p[i] = data_[i];
        delete[] data_;
        data_ = p;
        capacity_ = n;
        return true;
    }

    T *data_ = nullptr;
    std::size_t size_ = 0, capacity_ = 0;
};

/* A terminated string as an argument. */
class cstring {
public:
    cstring(const char *s) noexcept : s_(s) {}
    cstring(const std::string &s) noexcept : s_(s.c_str()) {}
    const char *get() const noexcept { return s_; }

private:
    const char *s_;
};

/* ------------------------------------------------------------------ status and result */

/* OK, or the library's error record. If a lambda threw, the exception is kept with it. */
class [[nodiscard]] status {
public:
    status() noexcept = default;
    explicit status(const kvcsa_error &e) noexcept : record_(e) {}
    static status failure(kvcsa_status code, std::string_view text) noexcept
    {
        status s;
        s.record_.status = code;
        const std::size_t room = sizeof s.record_.text - 1;
        std::memcpy(s.record_.text, text.data(), text.size() < room ? text.size() : room);
        return s;
    }
    static status thrown_by_callback(std::exception_ptr e) noexcept
    {
        status s = failure(KVCSA_ERR_CANCELLED, "a callback threw an exception");
        s.thrown_ = std::move(e);
        return s;
    }

    bool ok() const noexcept { return record_.status == KVCSA_OK; }
    explicit operator bool() const noexcept { return ok(); }
    kvcsa_status code() const noexcept { return record_.status; }
    std::int32_t detail() const noexcept { return record_.detail; }
    const char *text() const noexcept { return record_.text; } /* one line; "" if OK */
    const char *name() const noexcept { return kvcsa_status_name(record_.status); }
    const kvcsa_error &record() const noexcept { return record_; }
    const std::exception_ptr &thrown() const noexcept { return thrown_; }

private:
    kvcsa_error record_ = {};
    std::exception_ptr thrown_;
};

template <class T> class [[nodiscard]] result {
public:
    using value_type = T;

    result(T v) noexcept : value_(std::move(v)) {}
    /* A failure. One that says OK would claim a value that is not there. */
    result(status s) noexcept : status_(std::move(s))
    {
        if (status_.ok())
            status_ = status::failure(KVCSA_ERR_ARG, "a result was made of a status that is OK");
    }

    bool ok() const noexcept { return status_.ok(); }
    bool has_value() const noexcept { return ok(); }
    explicit operator bool() const noexcept { return ok(); }
    const status &error() const & noexcept { return status_; }
    status error() && noexcept { return std::move(status_); }
    T &value() & noexcept { return value_; }
    const T &value() const & noexcept { return value_; }
    T &&value() && noexcept { return std::move(value_); }
    T &operator*() & noexcept { return value_; }
    const T &operator*() const & noexcept { return value_; }
    T &&operator*() && noexcept { return std::move(value_); }
    T *operator->() noexcept { return &value_; }
    const T *operator->() const noexcept { return &value_; }
    T value_or(T other) && noexcept { return ok() ? std::move(value_) : std::move(other); }
    /* f(value) if there is one, else the error. f answers a result or a status. */
    template <class F> auto and_then(F &&f) && -> std::invoke_result_t<F, T &&>
    {
        if (ok())
            return std::forward<F>(f)(std::move(value_));
        return std::move(status_);
    }

private:
    T value_{};
    status status_;
};

#if KVCSA_HPP_EXCEPTIONS
/* What or_throw throws for an error of the library. */
class failure : public std::exception {
public:
    explicit failure(const kvcsa_error &e) noexcept : record_(e)
    {
        std::snprintf(what_, sizeof what_, "%s (%s)", e.text, kvcsa_status_name(e.status));
    }
    const char *what() const noexcept override { return what_; }
    kvcsa_status code() const noexcept { return record_.status; }
    std::int32_t detail() const noexcept { return record_.detail; }
    const kvcsa_error &record() const noexcept { return record_; }

private:
    kvcsa_error record_;
    char what_[sizeof(kvcsa_error) + 32];
};

/* Rethrows what a lambda threw; else throws `failure`; else nothing. */
inline void or_throw(const status &s)
{
    if (s.thrown())
        std::rethrow_exception(s.thrown());
    if (!s.ok())
        throw failure(s.record());
}
template <class T> T or_throw(result<T> &&r)
{
    or_throw(r.error());
    return std::move(r).value();
}
#endif

/* ------------------------------------------------------------------ the boundary to C */

/* What a progress lambda answers; one that answers nothing goes on. */
enum class next : std::int32_t { go_on = 0, cancel = 1 };

namespace detail {

template <class Fn> status call(Fn &&fn) noexcept
{
    kvcsa_error e = {};
    const kvcsa_status st = fn(&e);

    if (st == KVCSA_OK)
        return {};
    e.status = st;
    return status(e);
}

/* fn(T &value, kvcsa_error *) */
template <class T, class Fn> result<T> get(Fn &&fn) noexcept
{
    T v{};
    status s = call([&](kvcsa_error *e) { return fn(v, e); });

    if (s.ok())
        return v;
    return s;
}

/* Likewise for a struct that begins with its size. */
template <class T, class Fn> result<T> get_struct(Fn &&fn) noexcept
{
    return get<T>([&](T &v, kvcsa_error *e) {
        v.struct_size = sizeof v;
        return fn(&v, e);
    });
}

/* fn(C **out, kvcsa_error *) makes a handle. */
template <class Handle, class Fn> result<Handle> make(Fn &&fn) noexcept
{
    typename Handle::c_type *p = nullptr;
    status s = call([&](kvcsa_error *e) { return fn(&p, e); });

    if (s.ok())
        return Handle(p);
    return s;
}

/* fn(T *, size_t cap, size_t *n, kvcsa_error *) says how many there are, and gives as many as have
 * room: again if the guess was too low. */
template <class T, class Fn> result<buffer<T>> collect(std::size_t guess, Fn &&fn) noexcept
{
    buffer<T> b;
    std::size_t n = guess;

    do {
        if (!b.resize(n))
            return status::failure(KVCSA_ERR_NOMEM, "no memory for what the call answers");
        status s = call([&](kvcsa_error *e) { return fn(b.data(), b.size(), &n, e); });
        if (!s.ok())
            return s;
    } while (n > b.size());
    b.resize(n);
    return b;
}

/* Where the exceptions of one call's lambdas go. The innermost of the thread is known to lambdas
 * that the call does not know, such as those of on_logits. */
struct frame {
    std::exception_ptr thrown;
    frame *outer;

    static frame *&current() noexcept
    {
        thread_local frame *f = nullptr;
        return f;
    }
    frame() noexcept : outer(std::exchange(current(), this)) {}
    ~frame() { current() = outer; }
    frame(const frame &) = delete;
    frame &operator=(const frame &) = delete;
    bool stopped() const noexcept { return static_cast<bool>(thrown); }
    /* The status of the call, or what a lambda threw in it. */
    status settle(status s) noexcept
    {
        return thrown ? status::thrown_by_callback(std::move(thrown)) : std::move(s);
    }
};

/* Guard is in the name of the function, so that code with and without exceptions can be linked. */
template <bool Guard, class F> bool guarded(std::exception_ptr &thrown, F &&f) noexcept
{
#if KVCSA_HPP_EXCEPTIONS
    try {
        f();
    } catch (...) {
        thrown = std::current_exception();
        return false;
    }
#else
    (void)thrown;
    f();
#endif
    return true;
}

/* The lambda's answer as C wants it: 0 to go on. Nothing, kvcsa::next, or a number. */
template <class F, class... A> std::int32_t answer(F &f, A &&...a)
{
    using R = std::invoke_result_t<F &, A...>;

    static_assert(std::is_void_v<R> || std::is_same_v<R, next> ||
                      (std::is_integral_v<R> && !std::is_same_v<R, bool>),
                  "answer nothing, kvcsa::next or a number (0 = go on); a bool is easily wrong");
    if constexpr (std::is_void_v<R>) {
        f(std::forward<A>(a)...);
        return 0;
    } else {
        return static_cast<std::int32_t>(f(std::forward<A>(a)...));
    }
}

struct no_callback {
    template <class... A> void operator()(A &&...) const noexcept {}
};

/* A step: the caller's lambda, and a C callback if the parameters have one. */
template <class F, bool Guard = KVCSA_HPP_EXCEPTIONS> struct step_call : frame {
    F &f;
    kvcsa_progress_fn also;
    void *also_user;

    step_call(F &fn, const kvcsa_step_params &p) noexcept
        : f(fn), also(p.progress), also_user(p.user)
    {
    }
    static std::int32_t progress(void *user, kvcsa_session *s, std::uint64_t n_done,
                                 std::uint64_t n_queued) noexcept
    {
        step_call &c = *static_cast<step_call *>(user);
        std::int32_t r = 0;

        if (c.stopped())
            return 1;
        if (c.also && (r = c.also(c.also_user, s, n_done, n_queued)) != 0)
            return r;
        return guarded<Guard>(c.thrown, [&] { r = answer(c.f, s, n_done, n_queued); }) ? r : 1;
    }
};

/* Anything that reports two counts: comparisons, synthetic checkpoints. */
template <class F, bool Guard = KVCSA_HPP_EXCEPTIONS> struct count_call : frame {
    F &f;

    explicit count_call(F &fn) noexcept : f(fn) {}
    static std::int32_t progress(void *user, std::uint64_t n_done, std::uint64_t n) noexcept
    {
        count_call &c = *static_cast<count_call *>(user);
        std::int32_t r = 0;

        if (c.stopped())
            return 1;
        return guarded<Guard>(c.thrown, [&] { r = answer(c.f, n_done, n); }) ? r : 1;
    }
};

template <class F, bool Guard = KVCSA_HPP_EXCEPTIONS> struct write_call : frame {
    F &f;

    explicit write_call(F &fn) noexcept : f(fn) {}
    static std::int32_t write(void *user, const void *data, std::size_t n) noexcept
    {
        write_call &c = *static_cast<write_call *>(user);
        const view<const std::byte> bytes(static_cast<const std::byte *>(data), n);
        std::int32_t r = 0;

        return guarded<Guard>(c.thrown, [&] { r = answer(c.f, bytes); }) ? r : -1;
    }
};

template <class F, bool Guard = KVCSA_HPP_EXCEPTIONS> struct read_call : frame {
    F &f;

    explicit read_call(F &fn) noexcept : f(fn) {}
    static std::int64_t read(void *user, void *data, std::size_t n) noexcept
    {
        read_call &c = *static_cast<read_call *>(user);
        std::int64_t r = 0;
        const view<std::byte> room(static_cast<std::byte *>(data), n);

        return guarded<Guard>(c.thrown, [&] { r = static_cast<std::int64_t>(c.f(room)); }) ? r : -1;
    }
};

/* A handle of C, owned. Handles may be released in any order. */
template <class C, void (*Release)(C **)> class handle {
public:
    using c_type = C;

    handle() noexcept = default;
    explicit handle(C *p) noexcept : p_(p) {} /* takes over */
    handle(handle &&o) noexcept : p_(o.detach()) {}
    handle &operator=(handle &&o) noexcept
    {
        if (this != &o) {
            reset();
            p_ = o.detach();
        }
        return *this;
    }
    handle(const handle &) = delete;
    handle &operator=(const handle &) = delete;
    ~handle() { reset(); }

    C *get() const noexcept { return p_; }
    explicit operator bool() const noexcept { return p_ != nullptr; }
    void reset() noexcept { Release(&p_); } /* harmless if there is none */
    C *detach() noexcept { return std::exchange(p_, nullptr); } /* to be released by C */

private:
    C *p_ = nullptr;
};

/* A C struct of parameters with its defaults. */
template <class P, void (*Default)(P *, std::size_t)> struct params : P {
    params() noexcept : P() { Default(this, sizeof(P)); }
};

} /* namespace detail */

using model_params = detail::params<kvcsa_model_params, kvcsa_model_params_default>;
using plan_params = detail::params<kvcsa_plan_params, kvcsa_plan_params_default>;
using pool_params = detail::params<kvcsa_pool_params, kvcsa_pool_params_default>;
using session_params = detail::params<kvcsa_session_params, kvcsa_session_params_default>;
using append_params = detail::params<kvcsa_append_params, kvcsa_append_params_default>;
using step_params = detail::params<kvcsa_step_params, kvcsa_step_params_default>;
using snapshot_params = detail::params<kvcsa_snapshot_params, kvcsa_snapshot_params_default>;
using sampler_params = detail::params<kvcsa_sampler_params, kvcsa_sampler_params_default>;
using serving_params = detail::params<kvcsa_serving_params, kvcsa_serving_params_default>;
using resume_params = detail::params<kvcsa_resume_params, kvcsa_resume_params_default>;
using agent_params = detail::params<kvcsa_agent_params, kvcsa_agent_params_default>;
using synth_params = detail::params<kvcsa_synth_params, kvcsa_synth_params_default>;
using setting = detail::params<kvcsa_setting, kvcsa_setting_default>;

inline std::uint32_t version_number() noexcept { return kvcsa_version_number(); }
inline const char *version_string() noexcept { return kvcsa_version_string(); }
inline const char *format_name(std::uint32_t format) noexcept { return kvcsa_format_name(format); }

/* ------------------------------------------------------------------ hooks */

/* A hook is an object that must outlive what it is given to, and all that hangs on that. Its
 * address goes into the parameters:
 *     auto log = kvcsa::on_log([](int32_t level, const char *text) { ... });
 *     kvcsa::pool_params p;  p.log = log.get();
 * Lambdas may be called from any thread. What log and trace throw has nowhere to go but into the
 * step that runs on the same thread; elsewhere it is dropped. */

namespace detail {
template <class F> struct hook {
    F f;
    explicit hook(F fn) noexcept(std::is_nothrow_move_constructible_v<F>) : f(std::move(fn)) {}
    hook(const hook &) = delete;
    hook &operator=(const hook &) = delete;

    template <bool Guard, class... A> void run(A &&...a) noexcept
    {
        frame *at = frame::current();
        std::exception_ptr dropped;

        guarded<Guard>(at && !at->stopped() ? at->thrown : dropped,
                       [&] { f(std::forward<A>(a)...); });
    }
};
} /* namespace detail */

template <class F, bool Guard = KVCSA_HPP_EXCEPTIONS> class log_hook : detail::hook<F> {
public:
    explicit log_hook(F fn) : detail::hook<F>(std::move(fn)) {}
    const kvcsa_log *get() const noexcept { return &c_; }

private:
    static void write(void *user, std::int32_t level, const char *text) noexcept
    {
        static_cast<log_hook *>(user)->template run<Guard>(level, text);
    }
    kvcsa_log c_ = {write, this};
};
template <class F> log_hook<F> on_log(F f) { return log_hook<F>(std::move(f)); }

template <class F, bool Guard = KVCSA_HPP_EXCEPTIONS> class trace_hook : detail::hook<F> {
public:
    explicit trace_hook(F fn) : detail::hook<F>(std::move(fn)) {}
    const kvcsa_trace *get() const noexcept { return &c_; }

private:
    static void event(void *user, const kvcsa_trace_event *e) noexcept
    {
        static_cast<trace_hook *>(user)->template run<Guard>(*e);
    }
    kvcsa_trace c_ = {event, this};
};
/* f(const kvcsa_trace_event &) */
template <class F> trace_hook<F> on_trace(F f) { return trace_hook<F>(std::move(f)); }

/* The host's threads: f(n, task) calls task(i) once for every i below n, and returns when all have
 * returned. It must be noexcept: half a loop cannot be undone. */
class executor_task {
public:
    executor_task(void (*f)(void *, std::uint32_t), void *arg) noexcept : f_(f), arg_(arg) {}
    void operator()(std::uint32_t i) const noexcept { f_(arg_, i); }

private:
    void (*f_)(void *, std::uint32_t);
    void *arg_;
};
template <class F> class executor_hook : detail::hook<F> {
    static_assert(std::is_nothrow_invocable_v<F &, std::uint32_t, executor_task>,
                  "an executor is noexcept: f(std::uint32_t, kvcsa::executor_task) noexcept");

public:
    executor_hook(std::uint32_t width, F fn)
        : detail::hook<F>(std::move(fn)), c_{run, this, width, 0}
    {
    }
    const kvcsa_executor *get() const noexcept { return &c_; }

private:
    static void run(void *user, void (*task)(void *, std::uint32_t), void *arg,
                    std::uint32_t n) noexcept
    {
        static_cast<executor_hook *>(user)->f(n, executor_task(task, arg));
    }
    kvcsa_executor c_;
};
template <class F> executor_hook<F> make_executor(std::uint32_t width, F f)
{
    return executor_hook<F>(width, std::move(f));
}

/* Memory from an object with  void *allocate(size_t n, size_t align) noexcept  (nullptr = none) and
 * void deallocate(void *, size_t n, size_t align) noexcept.  Borrowed. */
template <class A> class allocator_hook {
public:
    explicit allocator_hook(A &a) noexcept : c_{alloc, release, &a} {}
    const kvcsa_allocator *get() const noexcept { return &c_; }

private:
    static_assert(noexcept(std::declval<A &>().allocate(std::size_t(), std::size_t())) &&
                      noexcept(std::declval<A &>().deallocate(nullptr, std::size_t(),
                                                              std::size_t())),
                  "allocate and deallocate are noexcept");
    static void *alloc(void *user, std::size_t n, std::size_t align) noexcept
    {
        return static_cast<A *>(user)->allocate(n, align);
    }
    static void release(void *user, void *p, std::size_t n, std::size_t align) noexcept
    {
        static_cast<A *>(user)->deallocate(p, n, align);
    }
    kvcsa_allocator c_;
};

#if defined(__cpp_lib_memory_resource)
/* Memory from a std::pmr::memory_resource that is safe to use from several threads. What it throws
 * means that there is none. Borrowed. */
class pmr_allocator {
public:
    explicit pmr_allocator(std::pmr::memory_resource &r) noexcept
        : c_{alloc<KVCSA_HPP_EXCEPTIONS>, release, &r}
    {
    }
    const kvcsa_allocator *get() const noexcept { return &c_; }

private:
    template <bool Guard>
    static void *alloc(void *user, std::size_t n, std::size_t align) noexcept
    {
        std::exception_ptr thrown;
        void *p = nullptr;

        detail::guarded<Guard>(thrown, [&] {
            p = static_cast<std::pmr::memory_resource *>(user)->allocate(n, align);
        });
        return p;
    }
    static void release(void *user, void *p, std::size_t n, std::size_t align) noexcept
    {
        static_cast<std::pmr::memory_resource *>(user)->deallocate(p, n, align);
    }
    kvcsa_allocator c_;
};
#endif

/* Logits row by row: f(uint64_t position, view<const float> logits), called by steps. The object is
 * given to an append and must live until its tokens are computed or dropped:
 *     auto rows = kvcsa::on_logits([&](uint64_t pos, kvcsa::view<const float> l) { ... });
 *     session.append(ids, rows.all());
 * If f throws, no more rows come, the step is cancelled, and its status rethrows. Rows whose chunk
 * was done stay computed. */
template <class F, bool Guard = KVCSA_HPP_EXCEPTIONS> class logits_hook {
public:
    explicit logits_hook(F fn) : f_(std::move(fn)) {}
    logits_hook(const logits_hook &) = delete;
    logits_hook &operator=(const logits_hook &) = delete;

    append_params all() noexcept { return with(KVCSA_LOGITS_ALL); }
    /* Offsets into the append, ascending. Copied by the append. */
    append_params rows(view<const std::uint32_t> offsets) noexcept
    {
        append_params p = with(KVCSA_LOGITS_ROWS);
        p.rows = offsets.data();
        p.n_rows = static_cast<std::uint32_t>(offsets.size());
        return p;
    }
    /* What f threw in a step that C code made. */
    std::exception_ptr thrown() const noexcept { return thrown_; }

private:
    append_params with(std::uint32_t which) noexcept
    {
        append_params p;
        p.logits = which;
        p.on_logits = call;
        p.user = this;
        return p;
    }
    static void call(void *user, std::uint64_t position, const float *logits,
                     std::uint32_t n_vocab) noexcept
    {
        logits_hook &h = *static_cast<logits_hook *>(user);
        detail::frame *at = detail::frame::current();
        std::exception_ptr &thrown = at ? at->thrown : h.thrown_;

        if (!thrown)
            detail::guarded<Guard>(
                thrown, [&] { h.f_(position, view<const float>(logits, n_vocab)); });
    }
    F f_;
    std::exception_ptr thrown_;
};
template <class F> logits_hook<F> on_logits(F f) { return logits_hook<F>(std::move(f)); }

/* ------------------------------------------------------------------ plans */

/* Rows of a plan for model::from_plan; a row is a kvcsa_plan_row, to be changed at will. */

/* A row that keeps nothing: its size is set, and owners are -1. */
inline kvcsa_plan_row empty_row(std::uint32_t layer) noexcept
{
    kvcsa_plan_row r = {};
    r.struct_size = sizeof r;
    r.layer = static_cast<std::int32_t>(layer);
    r.kv_owner = r.select_owner = r.index_owner = -1;
    return r;
}
/* Grouped heads: every position has a key and a value of `width` channels for each KV head, and
 * queries read all. */
inline kvcsa_plan_row heads_row(std::uint32_t layer, std::uint32_t kv_heads, std::uint32_t width,
                                std::uint32_t format = KVCSA_FORMAT_F32) noexcept
{
    kvcsa_plan_row r = empty_row(layer);
    r.kv_owner = r.layer;
    r.select = KVCSA_SELECT_ALL;
    r.ratio = 1;
    r.kv_heads = kv_heads;
    r.entry_width = r.value_width = width;
    r.entry_format = r.value_format = format;
    r.value_kind = KVCSA_VALUE_OWN;
    return r;
}
/* One latent that is key and value: queries read the last `window_tokens` positions, and of the
 * entries, each made of `ratio` positions, the `select_entries` that an index finds. index_heads
 * and index_width are left to be set. */
inline kvcsa_plan_row sparse_row(std::uint32_t layer, std::uint32_t width, std::uint32_t ratio,
                                 std::uint32_t window_tokens, std::uint32_t select_entries,
                                 std::uint32_t format = KVCSA_FORMAT_FP4_E4M3_G16) noexcept
{
    kvcsa_plan_row r = empty_row(layer);
    r.kv_owner = r.select_owner = r.index_owner = r.layer;
    r.select = KVCSA_SELECT_OWN;
    r.ratio = ratio;
    r.pool_kind = ratio > 1 ? KVCSA_POOLING_GATED : KVCSA_POOLING_NONE;
    r.kv_heads = 1;
    r.entry_width = r.value_width = width;
    r.entry_format = format;
    r.index_format = KVCSA_FORMAT_FP4_E8M0_G32;
    r.select_entries = select_entries;
    r.window_tokens = window_tokens;
    r.window_format = KVCSA_FORMAT_FP8_E8M0_G32;
    return r;
}

/* ------------------------------------------------------------------ model */

class model : public detail::handle<kvcsa_model, kvcsa_model_release> {
public:
    using handle::handle;

    static result<model> open(cstring path,
                              const kvcsa_model_params &p = model_params()) noexcept
    {
        return detail::make<model>([&](kvcsa_model **out, kvcsa_error *e) {
            return kvcsa_model_open(path.get(), &p, out, e);
        });
    }
    /* From a cache plan alone, for a network of the host's own: a row a layer. */
    static result<model> from_plan(view<const kvcsa_plan_row> rows,
                                   const kvcsa_plan_params &p = plan_params()) noexcept
    {
        return detail::make<model>([&](kvcsa_model **out, kvcsa_error *e) {
            return kvcsa_model_from_plan(rows.data(), rows.size(), &p, out, e);
        });
    }
    /* Strings in it belong to the model. */
    result<kvcsa_model_info> info() const noexcept
    {
        return detail::get_struct<kvcsa_model_info>([&](kvcsa_model_info *i, kvcsa_error *e) {
            return kvcsa_model_get_info(get(), i, e);
        });
    }
    result<kvcsa_plan_row> plan_row(std::uint32_t layer) const noexcept
    {
        return detail::get_struct<kvcsa_plan_row>([&](kvcsa_plan_row *r, kvcsa_error *e) {
            return kvcsa_model_plan_row(get(), layer, r, e);
        });
    }
    /* flags: KVCSA_TOKENIZE_* */
    result<buffer<std::int32_t>> tokenize(std::string_view text,
                                          std::uint32_t flags = 0) const noexcept
    {
        return detail::collect<std::int32_t>(
            text.size(), [&](std::int32_t *ids, std::size_t cap, std::size_t *n, kvcsa_error *e) {
                return kvcsa_model_tokenize(get(), text.data() ? text.data() : "", text.size(),
                                            flags, ids, cap, n, e);
            });
    }
    /* Bytes of one token, owned by the model; they need not be whole characters. */
    result<std::string_view> token_text(std::int32_t id) const noexcept
    {
        return detail::get<std::string_view>([&](std::string_view &v, kvcsa_error *e) {
            const char *text = nullptr;
            std::size_t n = 0;
            const kvcsa_status st = kvcsa_model_token_text(get(), id, &text, &n, e);
            v = std::string_view(text, n);
            return st;
        });
    }
    result<buffer<char>> detokenize(tokens_view ids) const noexcept
    {
        return detail::collect<char>(
            ids.size() * 8, [&](char *text, std::size_t cap, std::size_t *n, kvcsa_error *e) {
                return kvcsa_model_detokenize(get(), ids.data(), ids.size(), text, cap, n, e);
            });
    }
    result<buffer<std::int32_t>> chat_prompt(view<const kvcsa_message> messages) const noexcept
    {
        return detail::collect<std::int32_t>(
            512, [&](std::int32_t *ids, std::size_t cap, std::size_t *n, kvcsa_error *e) {
                return kvcsa_model_chat_prompt(get(), messages.data(), messages.size(), ids, cap,
                                               n, e);
            });
    }

    /* What a cache costs: nothing is allocated. */
    result<kvcsa_cost> cost(std::uint64_t n_tokens) const noexcept
    {
        return detail::get_struct<kvcsa_cost>([&](kvcsa_cost *c, kvcsa_error *e) {
            return kvcsa_model_cost(get(), n_tokens, c, e);
        });
    }
    result<kvcsa_estimate> estimate(std::uint64_t n_tokens, std::uint64_t n_sessions = 1,
                                    std::uint64_t n_shared_tokens = 0,
                                    const kvcsa_session_params &p = session_params()) const noexcept
    {
        return detail::get_struct<kvcsa_estimate>([&](kvcsa_estimate *x, kvcsa_error *e) {
            return kvcsa_model_estimate(get(), &p, n_tokens, n_sessions, n_shared_tokens, x, e);
        });
    }
    result<kvcsa_serving_cost> serving_cost(const kvcsa_serving_params &p) const noexcept
    {
        return detail::get_struct<kvcsa_serving_cost>([&](kvcsa_serving_cost *c, kvcsa_error *e) {
            return kvcsa_model_serving_cost(get(), &p, c, e);
        });
    }
    result<kvcsa_resume_cost> resume_cost(const kvcsa_resume_params &p) const noexcept
    {
        return detail::get_struct<kvcsa_resume_cost>([&](kvcsa_resume_cost *c, kvcsa_error *e) {
            return kvcsa_model_resume_cost(get(), &p, c, e);
        });
    }
};

inline result<kvcsa_agent_cost> agent_cost(const kvcsa_agent_params &p) noexcept
{
    return detail::get_struct<kvcsa_agent_cost>(
        [&](kvcsa_agent_cost *c, kvcsa_error *e) { return kvcsa_agent_get_cost(&p, c, e); });
}

/* ------------------------------------------------------------------ text stream */

class text_stream : public detail::handle<kvcsa_text_stream, kvcsa_text_stream_release> {
public:
    using handle::handle;

    static result<text_stream> create(model &m, view<const char *const> stops = {}) noexcept
    {
        return detail::make<text_stream>([&](kvcsa_text_stream **out, kvcsa_error *e) {
            return kvcsa_text_stream_create(m.get(), stops.data(), stops.size(), out, e);
        });
    }
    /* Text that can be shown, valid until the next call; see stopped(). */
    result<std::string_view> push(std::int32_t token) noexcept
    {
        return detail::get<std::string_view>([&](std::string_view &v, kvcsa_error *e) {
            const char *text = nullptr;
            std::size_t n = 0;
            const kvcsa_status st =
                kvcsa_text_stream_push(get(), token, &text, &n, &stopped_, e);
            v = std::string_view(text, n);
            return st;
        });
    }
    result<std::string_view> finish() noexcept
    {
        return detail::get<std::string_view>([&](std::string_view &v, kvcsa_error *e) {
            const char *text = nullptr;
            std::size_t n = 0;
            const kvcsa_status st = kvcsa_text_stream_finish(get(), &text, &n, e);
            v = std::string_view(text, n);
            return st;
        });
    }
    /* Index of the stop string that the last push met; -1 = none. */
    std::int32_t stopped() const noexcept { return stopped_; }

private:
    std::int32_t stopped_ = -1;
};

/* ------------------------------------------------------------------ pool */

class session;
class session_list;

/* A pinned prefix: unpinned when it goes. Not longer than the handles of pool and model. */
class pin {
public:
    pin() noexcept = default;
    pin(kvcsa_pool *pool, const kvcsa_model *m, std::uint64_t salt, buffer<std::int32_t> t) noexcept
        : pool_(pool), model_(m), salt_(salt), tokens_(std::move(t))
    {
    }
    pin(pin &&o) noexcept
        : pool_(std::exchange(o.pool_, nullptr)), model_(o.model_), salt_(o.salt_),
          tokens_(std::move(o.tokens_))
    {
    }
    pin &operator=(pin &&o) noexcept
    {
        if (this != &o) {
            release();
            pool_ = std::exchange(o.pool_, nullptr);
            model_ = o.model_;
            salt_ = o.salt_;
            tokens_ = std::move(o.tokens_);
        }
        return *this;
    }
    pin(const pin &) = delete;
    pin &operator=(const pin &) = delete;
    ~pin() { release(); }

    std::size_t n_tokens() const noexcept { return tokens_.size(); } /* 0 = none was known */
    void release() noexcept
    {
        if (kvcsa_pool *p = std::exchange(pool_, nullptr); p && !tokens_.empty())
            /* fails only if the prefix was forgotten meanwhile, and the pin with it */
            kvcsa_prefix_unpin(p, model_, salt_, tokens_.data(), tokens_.size(), nullptr);
    }

private:
    kvcsa_pool *pool_ = nullptr;
    const kvcsa_model *model_ = nullptr;
    std::uint64_t salt_ = 0;
    buffer<std::int32_t> tokens_;
};

/* The known prefixes of one model and salt in one pool. Refers to both, owns nothing. */
class prefixes {
public:
    prefixes(kvcsa_pool *p, const kvcsa_model *m, std::uint64_t salt) noexcept
        : pool_(p), model_(m), salt_(salt)
    {
    }
    result<std::size_t> match(tokens_view t) const noexcept
    {
        return detail::get<std::size_t>([&](std::size_t &n, kvcsa_error *e) {
            return kvcsa_prefix_match(pool_, model_, salt_, t.data(), t.size(), &n, e);
        });
    }
    result<kvcsa::pin> pin(tokens_view t) const noexcept
    {
        buffer<std::int32_t> copy;
        if (!copy.append(t)) /* first: a pin that cannot be remembered could not be undone */
            return status::failure(KVCSA_ERR_NOMEM, "no memory for the tokens of a pin");
        std::size_t n = 0;
        status s = detail::call([&](kvcsa_error *e) {
            return kvcsa_prefix_pin(pool_, model_, salt_, t.data(), t.size(), &n, e);
        });
        if (!s.ok())
            return s;
        copy.resize(n);
        return kvcsa::pin(pool_, model_, salt_, std::move(copy));
    }
    /* Bytes of the budget that were freed. No tokens: all of this model and salt. */
    result<std::uint64_t> forget(tokens_view t = {}) const noexcept
    {
        return detail::get<std::uint64_t>([&](std::uint64_t &n, kvcsa_error *e) {
            return kvcsa_prefix_forget(pool_, model_, salt_, t.empty() ? nullptr : t.data(),
                                       t.size(), &n, e);
        });
    }

private:
    kvcsa_pool *pool_;
    const kvcsa_model *model_;
    std::uint64_t salt_;
};

class pool : public detail::handle<kvcsa_pool, kvcsa_pool_release> {
    template <class F>
    using if_progress = std::enable_if_t<std::is_invocable_v<F &, kvcsa_session *, std::uint64_t,
                                                             std::uint64_t>>;

public:
    using handle::handle;

    static result<pool> create(const kvcsa_pool_params &p = pool_params()) noexcept
    {
        return detail::make<pool>([&](kvcsa_pool **out, kvcsa_error *e) {
            return kvcsa_pool_create(&p, out, e);
        });
    }
    result<kvcsa_pool_stats> stats() noexcept
    {
        return detail::get_struct<kvcsa_pool_stats>([&](kvcsa_pool_stats *s, kvcsa_error *e) {
            return kvcsa_pool_get_stats(get(), s, e);
        });
    }
    /* Of a null handle: of a pool with default parameters. Likewise backend(). */
    result<kvcsa_cpu_info> cpu() const noexcept
    {
        return detail::get_struct<kvcsa_cpu_info>([&](kvcsa_cpu_info *i, kvcsa_error *e) {
            return kvcsa_pool_get_cpu(get(), i, e);
        });
    }
    result<kvcsa_backend_info> backend() const noexcept
    {
        return detail::get_struct<kvcsa_backend_info>([&](kvcsa_backend_info *i, kvcsa_error *e) {
            return kvcsa_pool_get_backend(get(), i, e);
        });
    }
    status check() noexcept
    {
        return detail::call([&](kvcsa_error *e) { return kvcsa_pool_check(get(), e); });
    }
    status resize(std::uint64_t budget_bytes) noexcept
    {
        return detail::call(
            [&](kvcsa_error *e) { return kvcsa_pool_resize(get(), budget_bytes, e); });
    }
    /* What the allocator got back. */
    result<std::uint64_t> trim(std::uint64_t max_used_bytes = 0) noexcept
    {
        return detail::get<std::uint64_t>([&](std::uint64_t &n, kvcsa_error *e) {
            return kvcsa_pool_trim(get(), max_used_bytes, &n, e);
        });
    }
    kvcsa::prefixes prefixes(const model &m, std::uint64_t salt = 0) noexcept
    {
        return {get(), m.get(), salt};
    }
    /* Every prefix of every model. */
    result<std::uint64_t> forget_all() noexcept
    {
        return detail::get<std::uint64_t>([&](std::uint64_t &n, kvcsa_error *e) {
            return kvcsa_prefix_forget(get(), nullptr, 0, nullptr, 0, &n, e);
        });
    }

    /* Compute what is queued. `what`: a session, or a container of sessions, of pointers to
     * sessions or of kvcsa_session *. `results`: as many as sessions, or none. */
    status step(const session_list &what, const kvcsa_step_params &p = step_params(),
                view<kvcsa_step_result> results = {}) noexcept
    {
        detail::no_callback none;
        return step_with(what, p, results, none);
    }
    /* Likewise, and f(kvcsa_session *, uint64_t n_done, uint64_t n_queued) between layers: answers
     * nothing, or kvcsa::next. If it throws, every session of the step is cancelled. */
    template <class F, class = if_progress<F>>
    status step(const session_list &what, F &&f, const kvcsa_step_params &p = step_params(),
                view<kvcsa_step_result> results = {}) noexcept
    {
        return step_with(what, p, results, f);
    }

private:
    template <class F>
    status step_with(const session_list &what, const kvcsa_step_params &p,
                     view<kvcsa_step_result> results, F &f) noexcept;
};

/* ------------------------------------------------------------------ chunk */

namespace detail {
/* A C struct that begins with its size and is zero otherwise. */
template <class S> struct zeroed : S {
    zeroed() noexcept : S() { this->struct_size = sizeof(S); }
};
} /* namespace detail */

using chunk_rows = detail::zeroed<kvcsa_chunk_rows>;
using chunk_queries = detail::zeroed<kvcsa_chunk_queries>;
using chunk_attention = detail::zeroed<kvcsa_chunk_attention>;

/* Rows of floats with strides, in floats: from a row to the next (0 = heads x width) and from a
 * head to the next (0 = width). The plan knows how many there are; nobody checks that they are. */
inline kvcsa_rows rows(view<const float> data, std::size_t row_stride = 0,
                       std::size_t head_stride = 0) noexcept
{
    return {data.data(), row_stride, head_stride};
}

/* The rows that a host computes next (session::chunk). One that goes without commit() is abandoned.
 * False, and closed, if nothing is to be computed. Not longer than its session. */
class chunk {
public:
    chunk() noexcept = default;
    chunk(kvcsa_session *open, const kvcsa_chunk_info &info) noexcept : open_(open), info_(info) {}
    chunk(chunk &&o) noexcept
        : open_(std::exchange(o.open_, nullptr)), info_(std::exchange(o.info_, {}))
    {
    }
    chunk &operator=(chunk &&o) noexcept
    {
        if (this != &o) {
            abandon();
            open_ = std::exchange(o.open_, nullptr);
            info_ = std::exchange(o.info_, {});
        }
        return *this;
    }
    chunk(const chunk &) = delete;
    chunk &operator=(const chunk &) = delete;
    ~chunk() { abandon(); }

    explicit operator bool() const noexcept { return open_ != nullptr; } /* it is open */
    std::uint64_t position() const noexcept { return info_.position; }
    std::uint64_t n_queued() const noexcept { return info_.n_queued; }
    std::uint32_t rows() const noexcept { return info_.n_rows; }
    bool replay() const noexcept { return info_.replay != 0; }
    /* The session's, until the chunk is closed; likewise below. */
    tokens_view tokens() const noexcept
    {
        return open_ ? tokens_view(info_.tokens, info_.n_rows) : tokens_view();
    }
    /* u64 [n_layers + 1]; null if it is closed. */
    const std::uint64_t *first_rows() const noexcept { return open_ ? info_.first_rows : nullptr; }

    status write(std::uint32_t layer, const kvcsa_chunk_rows &what) noexcept
    {
        return with_open([&](kvcsa_session *s, kvcsa_error *e) {
            return kvcsa_chunk_write(s, layer, &what, e);
        });
    }
    /* Grouped heads: keys and values of the rows, and nothing else. */
    status write(std::uint32_t layer, const kvcsa_rows &key, const kvcsa_rows &value) noexcept
    {
        chunk_rows r;
        r.key = key;
        r.value = value;
        return write(layer, r);
    }
    status select(std::uint32_t layer, const kvcsa_chunk_queries &q) noexcept
    {
        return with_open([&](kvcsa_session *s, kvcsa_error *e) {
            return kvcsa_chunk_select(s, layer, &q, e);
        });
    }
    /* ids: i32 [rows, select_entries]; empty = not wanted. */
    status select(std::uint32_t layer, const kvcsa_rows &query, const kvcsa_rows &weights,
                  view<std::int32_t> ids = {}) noexcept
    {
        chunk_queries q;
        q.query = query;
        q.weights = weights;
        q.ids = ids.empty() ? nullptr : ids.data();
        return select(layer, q);
    }
    status attend(std::uint32_t layer, const kvcsa_chunk_attention &a) noexcept
    {
        return with_open([&](kvcsa_session *s, kvcsa_error *e) {
            return kvcsa_chunk_attend(s, layer, &a, e);
        });
    }
    /* out: f32 [rows, n_heads, value_width]. sink: a logit a head, or none. */
    status attend(std::uint32_t layer, const kvcsa_rows &query, std::uint32_t n_heads,
                  view<float> out, view<const float> sink = {}, float scale = 0) noexcept
    {
        if (!sink.empty() && sink.size() != n_heads)
            return status::failure(KVCSA_ERR_ARG, "sink: as many logits as heads, or none");
        chunk_attention a;
        a.query = query;
        a.out = out.data();
        a.sink = sink.empty() ? nullptr : sink.data();
        a.n_heads = n_heads;
        a.scale = scale;
        return attend(layer, a);
    }
    /* It is closed afterwards, but if a layer was not written (KVCSA_ERR_ARG). */
    status commit() noexcept
    {
        status s = with_open(
            [](kvcsa_session *of, kvcsa_error *e) { return kvcsa_chunk_commit(of, e); });

        if (s.code() != KVCSA_ERR_ARG && s.code() != KVCSA_ERR_BUSY)
            open_ = nullptr;
        return s;
    }
    void abandon() noexcept
    {
        if (open_)
            kvcsa_chunk_abandon(std::exchange(open_, nullptr));
    }

private:
    /* A chunk that is closed must not reach the one that its session has opened since. */
    template <class Fn> status with_open(Fn &&fn) noexcept
    {
        if (!open_)
            return status::failure(KVCSA_ERR_ARG, "the chunk is closed");
        return detail::call([&](kvcsa_error *e) { return fn(open_, e); });
    }
    kvcsa_session *open_ = nullptr;
    kvcsa_chunk_info info_ = {};
};

/* ------------------------------------------------------------------ session */

class session : public detail::handle<kvcsa_session, kvcsa_session_release> {
public:
    using handle::handle;

    static result<session> create(pool &p, model &m,
                                  const kvcsa_session_params &params = session_params()) noexcept
    {
        return detail::make<session>([&](kvcsa_session **out, kvcsa_error *e) {
            return kvcsa_session_create(p.get(), m.get(), &params, out, e);
        });
    }
    /* Length after all queued tokens. */
    result<std::uint64_t> append(tokens_view t,
                                 const kvcsa_append_params &p = append_params()) noexcept
    {
        return detail::get<std::uint64_t>([&](std::uint64_t &pos, kvcsa_error *e) {
            return kvcsa_session_append(get(), t.data(), t.size(), &p, &pos, e);
        });
    }
    result<std::uint64_t> append(std::int32_t token) noexcept
    {
        return append(tokens_view(&token, 1));
    }
    /* Hold exactly these tokens; what is not there is queued. */
    result<kvcsa_reuse> sync(tokens_view t, const kvcsa_append_params &p = append_params()) noexcept
    {
        return detail::get_struct<kvcsa_reuse>([&](kvcsa_reuse *r, kvcsa_error *e) {
            return kvcsa_session_sync(get(), t.data(), t.size(), &p, r, e);
        });
    }
    void cancel() noexcept
    {
        if (get())
            kvcsa_session_cancel(get());
    }
    std::uint64_t length() const noexcept { return kvcsa_session_length(get()); }
    status logits(view<float> out) noexcept
    {
        return detail::call([&](kvcsa_error *e) {
            const bool fits = out.size() <= UINT32_MAX;
            return kvcsa_session_get_logits(
                get(), out.data(), fits ? static_cast<std::uint32_t>(out.size()) : 0, e);
        });
    }
    result<std::int32_t> sample(const kvcsa_sampler_params &p = sampler_params()) noexcept
    {
        return detail::get<std::int32_t>([&](std::int32_t &t, kvcsa_error *e) {
            return kvcsa_session_sample(get(), &p, &t, e);
        });
    }
    result<buffer<std::int32_t>> tokens(std::uint64_t from = 0) noexcept
    {
        const std::uint64_t n = length();
        return detail::collect<std::int32_t>(
            static_cast<std::size_t>(n > from ? n - from : 0),
            [&](std::int32_t *t, std::size_t cap, std::size_t *n_tokens, kvcsa_error *e) {
                return kvcsa_session_get_tokens(get(), from, t, cap, n_tokens, e);
            });
    }
    result<kvcsa_session_stats> stats() noexcept
    {
        return detail::get_struct<kvcsa_session_stats>([&](kvcsa_session_stats *s, kvcsa_error *e) {
            return kvcsa_session_get_stats(get(), s, e);
        });
    }
    struct layer_counts {
        kvcsa_work step, total;
    };
    result<layer_counts> layer_work(std::uint32_t layer) noexcept
    {
        return detail::get<layer_counts>([&](layer_counts &w, kvcsa_error *e) {
            return kvcsa_session_layer_work(get(), layer, &w.step, &w.total, e);
        });
    }
    status hide(std::uint64_t begin, std::uint64_t end) noexcept
    {
        return detail::call(
            [&](kvcsa_error *e) { return kvcsa_session_hide(get(), begin, end, 1, e); });
    }
    status show(std::uint64_t begin, std::uint64_t end) noexcept
    {
        return detail::call(
            [&](kvcsa_error *e) { return kvcsa_session_hide(get(), begin, end, 0, e); });
    }
    result<buffer<double>> mass(bool reset = false) noexcept
    {
        /* asked twice: the first call must not reset what the second is to give */
        auto r = detail::collect<double>(
            0, [&](double *m, std::size_t cap, std::size_t *n, kvcsa_error *e) {
                return kvcsa_session_get_mass(get(), m, cap, n, 0, e);
            });
        if (r.ok() && reset) {
            std::size_t n = 0;
            status s = detail::call([&](kvcsa_error *e) {
                return kvcsa_session_get_mass(get(), nullptr, 0, &n, 1, e);
            });
            if (!s.ok())
                return s;
        }
        return r;
    }
    result<kvcsa_reuse> reuse() noexcept
    {
        return detail::get_struct<kvcsa_reuse>([&](kvcsa_reuse *r, kvcsa_error *e) {
            return kvcsa_session_get_reuse(get(), r, e);
        });
    }
    result<std::size_t> common_prefix(tokens_view t) noexcept
    {
        return detail::get<std::size_t>([&](std::size_t &n, kvcsa_error *e) {
            return kvcsa_session_common_prefix(get(), t.data(), t.size(), &n, e);
        });
    }
    /* A second session with all tokens of this one, or its first `position`. */
    result<session> fork() noexcept { return fork(length()); }
    result<session> fork(std::uint64_t position,
                         const kvcsa_session_params *p = nullptr) noexcept
    {
        return detail::make<session>([&](kvcsa_session **out, kvcsa_error *e) {
            return kvcsa_session_fork(get(), position, p, out, e);
        });
    }
    status rewind(std::uint64_t position) noexcept
    {
        return detail::call(
            [&](kvcsa_error *e) { return kvcsa_session_rewind(get(), position, e); });
    }
    /* flags: KVCSA_ERASE_* */
    status erase(std::uint32_t flags = 0) noexcept
    {
        return detail::call([&](kvcsa_error *e) { return kvcsa_session_erase(get(), flags, e); });
    }
    /* Tokens that can be found by prefix afterwards. */
    result<std::uint64_t> publish() noexcept
    {
        return detail::get<std::uint64_t>([&](std::uint64_t &n, kvcsa_error *e) {
            return kvcsa_prefix_publish(get(), &n, e);
        });
    }

    /* The rows that the host is to compute next; of sessions with KVCSA_SESSION_CACHE_ONLY. */
    result<kvcsa::chunk> chunk(std::uint32_t max_rows = 0) noexcept
    {
        auto info = detail::get_struct<kvcsa_chunk_info>([&](kvcsa_chunk_info *i, kvcsa_error *e) {
            return kvcsa_chunk_begin(get(), max_rows, i, e);
        });
        if (!info.ok())
            return std::move(info).error();
        return kvcsa::chunk(info->n_rows ? get() : nullptr, *info);
    }
    /* what: KVCSA_READ_*. Entries or positions first .. first + n - 1, as floats. */
    status read_rows(std::uint32_t layer, std::uint32_t what, std::uint64_t first, std::uint64_t n,
                     view<float> out) noexcept
    {
        return detail::call([&](kvcsa_error *e) {
            return kvcsa_session_read_rows(get(), layer, what, first, n, out.data(), out.size(), e);
        });
    }

    /* Snapshots. `path`: a file, or a directory that holds several under their names. */
    result<std::uint64_t> snapshot_size(
        const kvcsa_snapshot_params &p = snapshot_params()) noexcept
    {
        return detail::get<std::uint64_t>([&](std::uint64_t &n, kvcsa_error *e) {
            return kvcsa_snapshot_size(get(), &p, &n, e);
        });
    }
    result<kvcsa_snapshot_info> save(cstring path,
                                     const kvcsa_snapshot_params &p = snapshot_params()) noexcept
    {
        return detail::get_struct<kvcsa_snapshot_info>([&](kvcsa_snapshot_info *i, kvcsa_error *e) {
            return kvcsa_snapshot_save(get(), path.get(), &p, i, e);
        });
    }
    result<kvcsa_snapshot_info> load(cstring path,
                                     const kvcsa_snapshot_params &p = snapshot_params()) noexcept
    {
        return detail::get_struct<kvcsa_snapshot_info>([&](kvcsa_snapshot_info *i, kvcsa_error *e) {
            return kvcsa_snapshot_load(get(), path.get(), &p, i, e);
        });
    }
    /* f(view<const std::byte>): nothing, or 0 = OK; anything else becomes detail(). */
    template <class F>
    result<kvcsa_snapshot_info> write(F &&f,
                                      const kvcsa_snapshot_params &p = snapshot_params()) noexcept
    {
        using call = detail::write_call<std::remove_reference_t<F>>;
        call c(f);
        const kvcsa_writer w = {call::write, &c};
        auto r =
            detail::get_struct<kvcsa_snapshot_info>([&](kvcsa_snapshot_info *i, kvcsa_error *e) {
                return kvcsa_snapshot_write(get(), &w, &p, i, e);
            });
        if (c.stopped())
            return c.settle({});
        return r;
    }
    /* f(view<std::byte>): bytes read, fewer at the end; negative = error. */
    template <class F>
    result<kvcsa_snapshot_info> read(F &&f,
                                     const kvcsa_snapshot_params &p = snapshot_params()) noexcept
    {
        using call = detail::read_call<std::remove_reference_t<F>>;
        call c(f);
        const kvcsa_reader rd = {call::read, &c};
        auto r =
            detail::get_struct<kvcsa_snapshot_info>([&](kvcsa_snapshot_info *i, kvcsa_error *e) {
                return kvcsa_snapshot_read(get(), &rd, &p, i, e);
            });
        if (c.stopped())
            return c.settle({});
        return r;
    }
};

inline result<kvcsa_snapshot_info>
inspect_snapshot(cstring path, const kvcsa_snapshot_params &p = snapshot_params()) noexcept
{
    return detail::get_struct<kvcsa_snapshot_info>([&](kvcsa_snapshot_info *i, kvcsa_error *e) {
        return kvcsa_snapshot_inspect(path.get(), &p, i, e);
    });
}
inline status remove_snapshot(cstring path,
                              const kvcsa_snapshot_params &p = snapshot_params()) noexcept
{
    return detail::call(
        [&](kvcsa_error *e) { return kvcsa_snapshot_remove(path.get(), &p, e); });
}

/* The sessions of a step as C wants them. */
class session_list {
    static constexpr std::size_t room = 32; /* without the heap */
    static kvcsa_session *raw(kvcsa_session *s) noexcept { return s; }
    static kvcsa_session *raw(const session &s) noexcept { return s.get(); }
    static kvcsa_session *raw(const session *s) noexcept { return s ? s->get() : nullptr; }

public:
    session_list(const session &s) noexcept : n_(1) { few_[0] = s.get(); }
    template <class C, class = decltype(raw(*std::data(std::declval<const C &>())))>
    session_list(const C &c) noexcept : n_(std::size(c))
    {
        ok_ = n_ <= room || many_.resize(n_);
        kvcsa_session **p = n_ <= room ? few_.data() : many_.data();
        for (std::size_t i = 0; i < n_ && ok_; i++)
            p[i] = raw(std::data(c)[i]);
    }
    bool ok() const noexcept { return ok_; }
    std::size_t size() const noexcept { return n_; }
    kvcsa_session *const *data() const noexcept { return n_ <= room ? few_.data() : many_.data(); }

private:
    std::array<kvcsa_session *, room> few_ = {};
    buffer<kvcsa_session *> many_;
    std::size_t n_;
    bool ok_ = true;
};

template <class F>
status pool::step_with(const session_list &what, const kvcsa_step_params &p,
                       view<kvcsa_step_result> results, F &f) noexcept
{
    if (!what.ok())
        return status::failure(KVCSA_ERR_NOMEM, "no memory for the list of sessions");
    if (!results.empty() && results.size() != what.size())
        return status::failure(KVCSA_ERR_ARG, "results: as many as sessions, or none");
    using call = detail::step_call<F>;
    call c(f, p);
    kvcsa_step_params mine = p;
    mine.progress = call::progress;
    mine.user = &c;
    return c.settle(detail::call([&](kvcsa_error *e) {
        return kvcsa_pool_step(get(), what.data(), what.size(), &mine,
                               results.empty() ? nullptr : results.data(), e);
    }));
}

/* ------------------------------------------------------------------ sampling */

inline result<std::int32_t> sample_logits(view<const float> logits, std::uint64_t position,
                                          const kvcsa_sampler_params &p = sampler_params()) noexcept
{
    return detail::get<std::int32_t>([&](std::int32_t &t, kvcsa_error *e) {
        const bool fits = logits.size() <= UINT32_MAX;
        return kvcsa_sample_logits(logits.data(),
                                   fits ? static_cast<std::uint32_t>(logits.size()) : 0, position,
                                   &p, &t, e);
    });
}

/* ------------------------------------------------------------------ comparing */

class compare : public detail::handle<kvcsa_compare, kvcsa_compare_release> {
public:
    using handle::handle;

    static result<compare> create(const kvcsa_allocator *a = nullptr) noexcept
    {
        return detail::make<compare>(
            [&](kvcsa_compare **out, kvcsa_error *e) { return kvcsa_compare_create(a, out, e); });
    }
    status begin() noexcept
    {
        return detail::call([&](kvcsa_error *e) { return kvcsa_compare_begin(get(), e); });
    }
    /* next_token: -1 = none. */
    status add(std::uint64_t position, std::int32_t next_token, view<const float> ref,
               view<const float> test) noexcept
    {
        if (ref.size() != test.size() || ref.size() > UINT32_MAX)
            return status::failure(KVCSA_ERR_ARG, "rows of different length");
        return detail::call([&](kvcsa_error *e) {
            return kvcsa_compare_add(get(), position, next_token, ref.data(), test.data(),
                                     static_cast<std::uint32_t>(ref.size()), e);
        });
    }
    status add_greedy(tokens_view ref, tokens_view test) noexcept
    {
        if (ref.size() != test.size())
            return status::failure(KVCSA_ERR_ARG, "continuations of different length");
        return detail::call([&](kvcsa_error *e) {
            return kvcsa_compare_add_greedy(get(), ref.data(), test.data(), ref.size(), e);
        });
    }
    result<kvcsa_compare_result> figures() const noexcept
    {
        return detail::get_struct<kvcsa_compare_result>(
            [&](kvcsa_compare_result *r, kvcsa_error *e) {
                return kvcsa_compare_get_result(get(), r, e);
            });
    }
    result<buffer<kvcsa_compare_row>> rows(std::uint64_t from = 0) const noexcept
    {
        return detail::collect<kvcsa_compare_row>(
            0, [&](kvcsa_compare_row *r, std::size_t cap, std::size_t *n, kvcsa_error *e) {
                return kvcsa_compare_get_rows(get(), from, r, cap, n, e);
            });
    }
    result<buffer<std::uint64_t>> greedy() const noexcept
    {
        return detail::collect<std::uint64_t>(
            0, [&](std::uint64_t *s, std::size_t cap, std::size_t *n, kvcsa_error *e) {
                return kvcsa_compare_get_greedy(get(), s, cap, n, e);
            });
    }
};

namespace detail {
/* Comparisons as C wants them. */
template <class Fn> status with_compares(view<compare> c, std::size_t n_tests, Fn &&fn) noexcept
{
    buffer<kvcsa_compare *> list;

    if (c.size() != n_tests)
        return status::failure(KVCSA_ERR_ARG, "as many comparisons as tests");
    for (compare &one : c)
        if (!list.push_back(one.get()))
            return status::failure(KVCSA_ERR_NOMEM, "no memory for the list of comparisons");
    return call([&](kvcsa_error *e) { return fn(list.data(), e); });
}
} /* namespace detail */

/* One text under a reference and other settings. Settings are kvcsa_setting, in an array
 * (kvcsa::setting has the defaults). f(uint64_t n_done_rows, uint64_t n_rows) answers nothing, or
 * kvcsa::next. */
template <class F = detail::no_callback>
status compare_text(const kvcsa_setting &ref, view<const kvcsa_setting> tests, view<compare> into,
                    tokens_view text, std::uint64_t first = 0, F &&f = F()) noexcept
{
    using call = detail::count_call<std::remove_reference_t<F>>;
    call c(f);
    const kvcsa_compare_progress progress = {call::progress, &c};
    return c.settle(detail::with_compares(
        into, tests.size(), [&](kvcsa_compare *const *list, kvcsa_error *e) {
            return kvcsa_compare_text(&ref, tests.data(), list, tests.size(), text.data(),
                                      text.size(), first, &progress, e);
        }));
}

/* Continuations of n_generate tokens: the reference's, then those of the tests. */
template <class F = detail::no_callback>
result<buffer<std::int32_t>> compare_greedy(const kvcsa_setting &ref,
                                            view<const kvcsa_setting> tests, view<compare> into,
                                            tokens_view prompt, std::size_t n_generate,
                                            F &&f = F()) noexcept
{
    using call = detail::count_call<std::remove_reference_t<F>>;
    buffer<std::int32_t> made;

    if ((tests.size() + 1) > static_cast<std::size_t>(-1) / (n_generate + 1) ||
        !made.resize((tests.size() + 1) * n_generate))
        return status::failure(KVCSA_ERR_NOMEM, "no memory for the continuations");
    call c(f);
    const kvcsa_compare_progress progress = {call::progress, &c};
    status s = c.settle(detail::with_compares(
        into, tests.size(), [&](kvcsa_compare *const *list, kvcsa_error *e) {
            return kvcsa_compare_greedy(&ref, tests.data(), list, tests.size(), prompt.data(),
                                        prompt.size(), n_generate, made.data(), &progress, e);
        }));
    if (!s.ok())
        return s;
    return made;
}

/* ------------------------------------------------------------------ synthetic checkpoints */

/* f(uint64_t n_done_bytes, uint64_t n_bytes) answers nothing, or kvcsa::next. A null directory
 * writes nothing. */
template <class F = detail::no_callback>
result<kvcsa_synth_info> synth_checkpoint(cstring config, cstring directory,
                                          const kvcsa_synth_params &p = synth_params(),
                                          F &&f = F()) noexcept
{
    using call = detail::count_call<std::remove_reference_t<F>>;
    call c(f);
    kvcsa_synth_params mine = p;

    if (!mine.progress) {
        mine.progress = call::progress;
        mine.user = &c;
    }
    auto r = detail::get_struct<kvcsa_synth_info>([&](kvcsa_synth_info *i, kvcsa_error *e) {
        return kvcsa_synth_checkpoint(config.get(), directory.get(), &mine, i, e);
    });
    if (c.stopped())
        return c.settle({});
    return r;
}

} /* namespace kvcsa */

#if __cplusplus >= 202002L && defined(__cpp_lib_ranges)
template <class T> inline constexpr bool std::ranges::enable_borrowed_range<kvcsa::view<T>> = true;
#endif

#endif
