// Registry: the functions that other processes may call here, by name. Functions are registered,
// not shipped: both ends are compiled with their types, which are compared when a call arrives.
//
//   rpc::Registry registry;
//   registry.add("matmul", [](const at::Tensor& a, const at::Tensor& b) { return a.matmul(b); });
//   // For remote<Net>():
//   registry.add("make_net", [](int64_t width) { return std::make_shared<Net>(width); });
//   // For calls through an RRef<Net>:
//   registry.add("forward", [](Net& net, const at::Tensor& x) { return net.forward(x); });
//   registry.add("reset", &Net::reset);
//
// Parameters: values that can be sent (codec.h), by value or const reference; T& and
// std::shared_ptr<T> stand for an object of this process, for which callers give an RRef<T>.
// Results: void, or values that can be sent; any other T or std::shared_ptr<T> is for remote(), and
// stays here. A function that returns Future<R> answers once the future has its value, and keeps no
// thread meanwhile (PyTorch's async_execution). An exception of a function is thrown at its caller,
// as RemoteError.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/core/export.h"
#include "lockstep/rpc/codec.h"
#include "lockstep/rpc/future.h"
#include "lockstep/rpc/rref.h"

namespace lockstep::inline v0::rpc {

// The options of a registered function.
struct FunctionOptions {
  // Runs on the thread that received the call, before anything else is received; for functions that
  // take microseconds and never wait. Thousands of calls then need no thread switch.
  bool quick = false;
};

class Registry;

namespace internal {

// One registered function with its types erased.
class LOCKSTEP_API Function {
 public:
  // The result of a call: exactly one of these is called, once, by any thread.
  class Result {
   public:
    virtual ~Result() = default;
    // A value: `write` is called at once if the caller needs it; `object` makes the object that
    // remote() keeps. Either may be null.
    virtual void value(const std::function<void(Writer&)>& write,
                       const std::function<std::shared_ptr<Object>()>& object) = 0;
    virtual void error(std::exception_ptr error) = 0;
  };
  using ResultPtr = std::shared_ptr<Result>;

  virtual ~Function() = default;
  // Reads the arguments, runs, and completes `result`, perhaps later. Throws if it has not
  // completed it.
  virtual void call(Reader& arguments, const ResultPtr& result) const = 0;

  std::string name;
  std::string types;  // "(tensor, int) -> tensor"
  uint64_t types_hash = 0;
  FunctionOptions options;
  std::source_location site;
};

LOCKSTEP_API uint64_t hash_of(std::string_view text);  // FNV-1a

// Registers a function of the agent's own.
LOCKSTEP_API void insert_own(Registry& registry, const std::string& name,
                             std::shared_ptr<Function> function, FunctionOptions options = {});

// Parameter P of a function: the type that is sent for it, and how it is passed on.
template <typename P, typename = void>
struct Parameter;
template <typename P>
  requires(Travels<std::remove_cvref_t<P>> &&
           !(std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>))
struct Parameter<P> {
  using Kept = std::remove_cvref_t<P>;
  using Sent = Kept;
  static Kept read(Reader& reader) { return Codec<Kept>::read(reader); }
  static Kept&& pass(Kept& kept) { return std::move(kept); }
};
template <typename T>
  requires(!std::is_const_v<T>)
struct Parameter<T&> {
  using Kept = std::shared_ptr<T>;
  using Sent = RRef<T>;
  static Kept read(Reader& reader) { return Codec<RRef<T>>::read(reader).local_value(); }
  static T& pass(Kept& kept) { return *kept; }
};
template <typename T>
  requires(!Travels<T>)
struct Parameter<const T&> : Parameter<T&> {};
template <typename T>
  requires(!Travels<std::shared_ptr<T>>)
struct Parameter<std::shared_ptr<T>> {
  using Kept = std::shared_ptr<T>;
  using Sent = RRef<T>;
  static Kept read(Reader& reader) { return Codec<RRef<T>>::read(reader).local_value(); }
  static Kept&& pass(Kept& kept) { return std::move(kept); }
};
template <typename T>
struct Parameter<const std::shared_ptr<T>&> : Parameter<std::shared_ptr<T>> {};

// A function's result type, whether it is returned directly or by a Future.
template <typename R>
struct ResultType {
  using Value = R;
  static constexpr bool later = false;
};
template <typename R>
struct ResultType<Future<R>> {
  using Value = R;
  static constexpr bool later = true;
};
template <typename R>
struct Unshared {
  using type = R;
};
template <typename R>
struct Unshared<std::shared_ptr<R>> {
  using type = R;
};

template <typename R>
void describe_result(TypeText& text) {
  if constexpr (std::is_void_v<R>)
    text += "nothing";
  else
    describe_type<typename Unshared<R>::type>(text);
}
template <typename R, typename... Sent>
std::string types_text() {
  TypeText text;
  Codec<std::tuple<Sent...>>::describe(text);
  text += " -> ";
  describe_result<R>(text);
  return text.str();
}

template <typename R>
void give(Function::Result& result, R&& value) {
  using T = std::remove_cvref_t<R>;
  if constexpr (Travels<T>) {
    result.value([&](Writer& writer) { Codec<T>::write(writer, value); },
                 [&] { return std::make_shared<TypedObject<T>>(std::make_shared<T>(value)); });
  } else {
    using Held = typename Unshared<T>::type;
    result.value(nullptr, [&]() -> std::shared_ptr<Object> {
      if constexpr (std::is_same_v<Held, T>)
        return std::make_shared<TypedObject<T>>(std::make_shared<T>(std::forward<R>(value)));
      else
        return std::make_shared<TypedObject<Held>>(value);
    });
  }
}
inline void give_nothing(Function::Result& result) {
  give(result, Nothing{});
}

template <typename F, typename R, typename... P>
class TypedFunction final : public Function {
 public:
  explicit TypedFunction(F body) : body_(std::move(body)) {
    types = types_text<typename ResultType<R>::Value, typename Parameter<P>::Sent...>();
    types_hash = hash_of(types);
  }

  void call(Reader& arguments, const ResultPtr& result) const override {
    std::tuple<typename Parameter<P>::Kept...> kept{
        Parameter<P>::read(arguments)...};  // braces: in order
    arguments.end();
    run(kept, result, std::index_sequence_for<P...>());
  }

 private:
  template <size_t... I>
  void run(std::tuple<typename Parameter<P>::Kept...>& kept, const ResultPtr& result,
           std::index_sequence<I...>) const {
    using Value = typename ResultType<R>::Value;
    if constexpr (ResultType<R>::later) {
      R future = std::invoke(body_, Parameter<P>::pass(std::get<I>(kept))...);
      future.when_done([result](const R& done) {
        try {
          if (done.error()) return result->error(done.error());
          if constexpr (std::is_void_v<Value>)
            give_nothing(*result);
          else
            give(*result, done.get());
        } catch (...) {
          result->error(std::current_exception());
        }
      });
    } else if constexpr (std::is_void_v<Value>) {
      std::invoke(body_, Parameter<P>::pass(std::get<I>(kept))...);
      give_nothing(*result);
    } else {
      give(*result, std::invoke(body_, Parameter<P>::pass(std::get<I>(kept))...));
    }
  }

  F body_;
};

// The signature R(P...) of any callable.
template <typename F>
struct Callable : Callable<decltype(&F::operator())> {};
template <typename R, typename... P>
struct Callable<R (*)(P...)> {
  template <typename F>
  using Function = TypedFunction<F, R, P...>;
};
template <typename R, typename C, typename... P>
struct Callable<R (C::*)(P...) const> : Callable<R (*)(P...)> {
  using Class = C;
};
template <typename R, typename C, typename... P>
struct Callable<R (C::*)(P...)> : Callable<R (*)(P...)> {
  using Class = C;
};
// A member function that is registered by itself takes its object as first argument.
template <typename R, typename C, typename... P>
Callable<R (*)(C&, P...)> callable_of(R (C::*)(P...));
template <typename R, typename C, typename... P>
Callable<R (*)(C&, P...)> callable_of(R (C::*)(P...) const);
template <typename F>
Callable<F> callable_of(F);

}  // namespace internal

class LOCKSTEP_API Registry {
 public:
  // Throws InvalidArgument if the name is taken, empty, longer than 200 bytes, or begins with
  // "rpc." (the agent's own). A function must allow concurrent calls by several threads.
  template <typename F>
  Registry& add(std::string name, F function, FunctionOptions options = {},
                std::source_location site = std::source_location::current()) {
    using Typed = typename decltype(internal::callable_of(function))::template Function<F>;
    insert(std::move(name), std::make_shared<Typed>(std::move(function)), options, site);
    return *this;
  }

  const internal::Function* find(std::string_view name) const;  // null: there is none
  // All names with their types, in order.
  std::map<std::string, std::string> list() const;

 private:
  friend void internal::insert_own(Registry&, const std::string&,
                                   std::shared_ptr<internal::Function>, FunctionOptions);
  void insert(std::string name, std::shared_ptr<internal::Function> function,
              FunctionOptions options, std::source_location site, bool own = false);

  std::map<std::string, std::shared_ptr<internal::Function>, std::less<>> functions_;
};

}  // namespace lockstep::inline v0::rpc
