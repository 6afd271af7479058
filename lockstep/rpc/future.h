// Future: the result of a remote call.
//
//   rpc::Future<at::Tensor> f = agent.rpc_async<at::Tensor>("ps", "pull", step);
//   rpc::Future<double> norm = f.then([](const at::Tensor& t) { return t.norm().item<double>(); });
//   double n = norm.get();
//
// or in a coroutine, which returns a Future itself, and may be registered as a function:
//
//   rpc::Future<at::Tensor> twice(at::Tensor x) {
//     at::Tensor y = co_await rpc::Agent::current().rpc_async<at::Tensor>("b", "double", x);
//     co_return y;
//   }
//
// A copy is a handle of the same result.
// Thread-safety: any thread may call any member.
#pragma once

#include <chrono>
#include <concepts>
#include <coroutine>
#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/rpc/call_context.h"
#include "lockstep/rpc/errors.h"
#include "lockstep/rpc/future_state.h"
#include "lockstep/rpc/tensors_in.h"

namespace lockstep::inline v0::rpc {

template <typename T>
class Future;
template <typename T>
class Promise;

namespace internal {
[[noreturn]] LOCKSTEP_API void throw_empty_future();
[[noreturn]] LOCKSTEP_API void throw_not_done(Deadline deadline);

// Resumes a coroutine, once, in the context in which it waits. If it is dropped, as by an agent
// that stops, the coroutine ends with it, and its future is Cancelled.
class LOCKSTEP_API Resumption {
 public:
  explicit Resumption(std::coroutine_handle<> waiting) : waiting_(waiting) {}
  Resumption(Resumption&& other) noexcept
      : waiting_(std::exchange(other.waiting_, nullptr)), context_(std::move(other.context_)) {}
  Resumption& operator=(Resumption&&) = delete;
  ~Resumption() {
    if (waiting_) waiting_.destroy();
  }
  void operator()() {
    const ContextScope scope(std::move(context_));
    std::exchange(waiting_, nullptr).resume();
  }

 private:
  std::coroutine_handle<> waiting_;
  CallContext context_ = this_context();
};
template <typename T>
struct CoroutinePromise;
template <typename T>
struct Awaited;
template <typename T>
struct FutureOf {
  using type = Future<T>;
};
template <typename T>
struct FutureOf<Future<T>> {
  using type = Future<T>;
};
}  // namespace internal

// How long get() and wait() wait for a result whose maker has set no deadline, outside of a call.
inline constexpr std::chrono::minutes kLongestWait{10};

template <typename T>
class Future {
 public:
  using value_type = T;
  using promise_type = internal::CoroutinePromise<T>;
  using Value =
      std::conditional_t<std::is_void_v<T>, void, std::add_lvalue_reference_t<std::add_const_t<T>>>;

  Future() = default;  // an empty future: its members throw InvalidArgument
  explicit Future(std::shared_ptr<internal::ValueState<T>> state) : state_(std::move(state)) {}

  bool valid() const { return state_ != nullptr; }  // not an empty future
  bool done() const { return state().done(); }      // value or error are there
  // Waits, for a call at most until its deadline, and returns the value, which lives as long as the
  // state. This thread receives messages for others while it waits.
  // Throws: the call's error: RemoteError, Timeout, PeerLost, Cancelled, or any exception of a
  // continuation.
  Value get() const& {
    wait();
    state().come_here();  // a failed call, too, has sent tensors that may change from now on
    if (state().error()) std::rethrow_exception(state().error());
    if constexpr (!std::is_void_v<T>) return state().value();
  }
  // The value itself: moved from the last handle, copied from others.
  T get() && {
    static_cast<const Future&>(*this).get();
    if constexpr (!std::is_void_v<T>) {
      if (state_.use_count() == 1) return std::move(state_->value());
      return state_->value();
    }
  }
  // Throws Timeout if the result has not arrived; does not throw the call's error.
  void wait() const {
    const Deadline deadline = state().waited_until(kLongestWait);
    if (!state().wait_until(deadline)) internal::throw_not_done(deadline);
  }
  bool wait_for(std::chrono::nanoseconds time) const {
    return state().wait_until(Deadline::after(time));
  }
  // The call's error, once done(), or null.
  std::exception_ptr error() const { return state().error(); }

  // Calls f with the value once it has arrived: on a worker of the agent for a call's future,
  // otherwise where the promise is fulfilled. Returns the future of f's result (or of the future
  // that f returns). Errors skip f. Where the value is on devices, f is ordered after it and after
  // the tensors that its call has sent; f must order its other uses of streams itself.
  template <typename F>
  auto then(F f) const {
    using Result = decltype(invoke(f));
    using Out = typename internal::FutureOf<Result>::type;
    return then_into<Out, Result>(std::move(f));
  }
  // Calls f with this future, for a value or an error.
  template <typename F>
  void when_done(F f) const {
    state().on_done(internal::task_of([f = std::move(f), self = *this]() mutable { f(self); }));
  }

  // Gives the result up: the future is Cancelled unless it is done. The other end drops the call if
  // it has not begun, and tells a running function (rpc::cancelled()).
  void cancel() const { state().cancel(); }

  // co_await gives the value, or throws.
  bool await_ready() const { return done(); }
  void await_suspend(std::coroutine_handle<> waiting) const {
    state().on_done(internal::task_of(internal::Resumption(waiting)));
  }
  // Part of co_await.
  std::conditional_t<std::is_void_v<T>, void, T> await_resume() const {
    state().come_here();
    if (state().error()) std::rethrow_exception(state().error());
    if constexpr (!std::is_void_v<T>) return state().value();
  }

 private:
  internal::ValueState<T>& state() const {
    if (!state_) internal::throw_empty_future();
    return *state_;
  }
  template <typename F>
  auto invoke(F& f) const {
    state().come_here();
    if constexpr (std::is_void_v<T>)
      return f();
    else
      return f(std::as_const(state().value()));
  }
  template <typename Out, typename Result, typename F>
  Out then_into(F f) const;
  // Once done: the devices whose streams come_here() orders.
  std::vector<c10::Device> devices() const {
    std::vector<c10::Device> all;
    state().add_devices(all);
    return all;
  }

  template <typename>
  friend class Future;
  template <typename>
  friend struct internal::Awaited;
  std::shared_ptr<internal::ValueState<T>> state_;
};

// The producer's end, fulfilled once. Destroying an unfulfilled promise gives its futures
// Cancelled. Movable.
template <typename T>
class Promise {
 public:
  Promise() : state_(std::make_shared<internal::ValueState<T>>()) {}
  ~Promise() {
    if (state_)
      state_->fail(std::make_exception_ptr(Cancelled("the promise of the result is gone")));
  }
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;

  Future<T> future() const { return Future<T>(state_); }  // that this promise fulfils
  // Returns false if it had been fulfilled or cancelled. The value's tensors become complete when
  // this thread's current streams have done the work that they have been given so far.
  template <typename... Value>
    requires(sizeof...(Value) == (std::is_void_v<T> ? 0 : 1))
  bool set_value(Value&&... value) {
    return give({}, std::forward<Value>(value)...);
  }
  bool set_error(std::exception_ptr error) {
    if (!state_->claim()) return false;
    state_->finish(std::move(error));
    return true;
  }
  template <typename E>
    requires std::derived_from<E, std::exception>
  bool set_error(E error) {
    return set_error(std::make_exception_ptr(std::move(error)));
  }

 private:
  template <typename>
  friend class Future;
  template <typename>
  friend struct internal::CoroutinePromise;
  // set_value() for a value that this thread has computed on these devices, too.
  template <typename... Value>
  bool give(std::vector<c10::Device> devices, Value&&... value) {
    if (!state_->claim()) return false;
    try {
      std::vector<at::Tensor> tensors;
      if constexpr (!std::is_void_v<T>) {
        state_->store(T(std::forward<Value>(value)...));
        tensors = internal::tensors_in(std::as_const(state_->value()));
      }
      if (!devices.empty() || !tensors.empty())
        state_->arrives_with(internal::computed(std::move(devices), std::move(tensors)));
    } catch (...) {
      state_->finish(std::current_exception());
      return true;
    }
    state_->finish(nullptr);
    return true;
  }

  std::shared_ptr<internal::ValueState<T>> state_;
};

template <typename T>
template <typename Out, typename Result, typename F>
Out Future<T>::then_into(F f) const {
  using Kind = typename Out::value_type;
  auto promise = std::make_shared<Promise<Kind>>();
  Out out = promise->future();
  state().on_done(internal::task_of([f = std::move(f), self = *this, promise,
                                     context = internal::this_context().continued()]() mutable {
    if (self.error()) {
      promise->set_error(self.error());
      return;
    }
    const internal::ContextScope scope(std::move(context));
    try {
      if constexpr (std::is_same_v<Result, Out>) {
        self.invoke(f).when_done([promise](const Out& inner) {
          if (inner.error())
            promise->set_error(inner.error());
          else if constexpr (std::is_void_v<Kind>) {
            inner.get();
            promise->give(inner.devices());
          } else {
            promise->give(inner.devices(), inner.get());
          }
        });
      } else if constexpr (std::is_void_v<Result>) {
        self.invoke(f);
        promise->give(self.devices());
      } else {
        promise->give(self.devices(), self.invoke(f));
      }
    } catch (...) {
      promise->set_error(std::current_exception());
    }
  }));
  return out;
}

namespace internal {

// The awaiter of a future; records the devices on which the coroutine continues.
template <typename T>
struct Awaited {
  Future<T> future;
  std::vector<c10::Device>* devices;
  bool await_ready() const { return future.await_ready(); }
  void await_suspend(std::coroutine_handle<> waiting) const { future.await_suspend(waiting); }
  auto await_resume() const {
    future.state().add_devices(*devices);
    return future.await_resume();
  }
};
template <typename T>
inline constexpr bool kIsFuture = false;
template <typename T>
inline constexpr bool kIsFuture<Future<T>> = true;

template <typename T>
struct CoroutineBase {
  Promise<T> result;
  std::vector<c10::Device> devices;  // of the awaited values
  template <typename U>
  Awaited<U> await_transform(const Future<U>& future) {
    return {future, &devices};
  }
  template <typename Other>
    requires(!kIsFuture<std::remove_cvref_t<Other>>)
  Other&& await_transform(Other&& other) {
    return std::forward<Other>(other);
  }
  Future<T> get_return_object() { return result.future(); }
  std::suspend_never initial_suspend() noexcept { return {}; }
  std::suspend_never final_suspend() noexcept { return {}; }
  void unhandled_exception() { result.set_error(std::current_exception()); }
};
template <typename T>
struct CoroutinePromise : CoroutineBase<T> {
  template <typename V>
  void return_value(V&& value) {
    this->result.give(std::move(this->devices), std::forward<V>(value));
  }
};
template <>
struct CoroutinePromise<void> : CoroutineBase<void> {
  void return_void() { result.give(std::move(devices)); }
};

}  // namespace internal

// A future that is already done.
template <typename T>
Future<std::decay_t<T>> ready_future(T&& value) {
  Promise<std::decay_t<T>> promise;
  promise.set_value(std::forward<T>(value));
  return promise.future();
}

// Waits for all of them, then throws the first error in order, if any.
template <typename T>
void wait_all(const std::vector<Future<T>>& futures) {
  for (const auto& one : futures) one.wait();
  for (const auto& one : futures)
    if (one.error()) std::rethrow_exception(one.error());
}

}  // namespace lockstep::inline v0::rpc
