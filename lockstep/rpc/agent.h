// Agent: this process's end of remote calls. They are point to point, by name, at any time, from
// any thread.
//
//   rpc::Registry registry;
//   registry.add("matmul", [](const at::Tensor& a, const at::Tensor& b) { return a.matmul(b); });
//   rpc::Agent agent = rpc::init(comm, registry, {.name = "worker" + std::to_string(comm.rank())});
//   at::Tensor c = agent.rpc_sync<at::Tensor>("worker1", "matmul", a, b);
//   rpc::Future<at::Tensor> f = agent.rpc_async<at::Tensor>("worker1", "matmul", a, b);
//   rpc::RRef<Net> net = agent.remote<Net>("worker1", "make_net", 128);
//   agent.shutdown();
//
// A call's types are those of its arguments (string literals are strings, vectors are vectors) and
// the R that the caller asks for; the callee compares them with the function's own types. A tensor
// arrives with its own storage; its contents must not change until the call has returned. Tensors
// on devices need a device map that the caller sets for the peer (AgentOptions::set_device_map),
// and results return by the same map; without one they are refused.
//
// Every call has a deadline, and calls made while serving it end by the same deadline; they are
// Cancelled when its caller cancels it or is gone. A call that is not answered in time throws
// Timeout, and the other end is told. When a process is gone, all its pending calls fail at once
// (PeerLost), and the next call finds the process that has come back under its name. Calls to a
// process's own name work like any others.
//
// The queues are bounded: calls in flight and queued bytes for each peer. Beyond the bounds a call
// waits for room, at most until its deadline, and then reports that.
//
// Thread-safety: any thread. The agent itself has AgentOptions::workers threads for calls and one
// more. It starts one that connects to owners once a reference arrives whose owner is unknown here,
// and one that waits for copies once a tensor of a device is sent. A call that waits inside a
// function keeps its worker: use as many workers as such calls nest, or let the function return a
// Future.
//
// Method: calls by registered name with futures and references as in PyTorch's RPC (Damania et al.,
// "PyTorch RPC: Distributed Deep Learning Built on Tensor-Optimized Remote Procedure Calls", MLSys
// 2023).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/rpc/agent_options.h"
#include "lockstep/rpc/call_options.h"
#include "lockstep/rpc/codec.h"
#include "lockstep/rpc/future.h"
#include "lockstep/rpc/pending.h"
#include "lockstep/rpc/registry.h"
#include "lockstep/rpc/rref.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {
class Communicator;
}

namespace lockstep::inline v0::rpc {

namespace internal {

class Core;  // an agent's state, which all its handles share

template <typename R, typename... A>
struct CallTypes {
  static const std::string& text() {
    static const std::string text = types_text<R, SentFor<A>...>();
    return text;
  }
  static uint64_t hash() {
    static const uint64_t hash = hash_of(text());
    return hash;
  }
};

}  // namespace internal

// The functions of one peer, with options for their calls. A copyable handle.
class LOCKSTEP_API Destination {
 public:
  // `owned`: a reference; its owner alone is called. Null: the process that has the name.
  Destination(std::shared_ptr<internal::Core> core, std::string name, CallOptions options,
              internal::ReferencePtr owned = nullptr)
      : core_(std::move(core)),
        name_(std::move(name)),
        options_(options),
        owned_(std::move(owned)) {}

  // Calls `function` and waits for its result.
  // Throws: RemoteError, Timeout, PeerLost, Cancelled, InvalidArgument (an argument of a type that
  // cannot be sent).
  template <typename R = void, typename... Args>
  R rpc_sync(std::string_view function, const Args&... args) const {
    return start<R>(internal::How::kSync, function, args...).get();
  }
  // The same without waiting. Errors are in the future, except InvalidArgument.
  template <typename R = void, typename... Args>
  Future<R> rpc_async(std::string_view function, const Args&... args) const {
    return start<R>(internal::How::kAsync, function, args...);
  }
  // Calls the function and keeps its result at the peer, as an R. Does not wait: errors show when
  // the reference is used.
  template <typename R, typename... Args>
  RRef<R> remote(std::string_view function, const Args&... args) const {
    Writer& writer = internal::scratch_writer(core_);
    internal::write_all(writer, args...);
    using Types = internal::CallTypes<R, Args...>;
    return RRef<R>(internal::start_remote(
        core_, name_, {function, Types::hash(), &Types::text(), options_, internal::How::kAsync},
        writer, owned_));
  }

 private:
  template <typename R, typename... Args>
  Future<R> start(internal::How how, std::string_view function, const Args&... args) const {
    Writer& writer = internal::scratch_writer(core_);
    internal::write_all(writer, args...);
    using Types = internal::CallTypes<R, Args...>;
    auto call = std::make_shared<internal::TypedCall<R>>();
    internal::start_call(core_, name_, {function, Types::hash(), &Types::text(), options_, how},
                         writer, call, owned_);
    return Future<R>(std::move(call));
  }

  std::shared_ptr<internal::Core> core_;
  std::string name_;
  CallOptions options_;
  internal::ReferencePtr owned_;
};

class LOCKSTEP_API Agent {
 public:
  explicit Agent(std::shared_ptr<internal::Core> core) : core_(std::move(core)) {}
  // The agent whose call this thread serves.
  // Throws: InvalidArgument on other threads. The handle does not keep the agent running.
  static Agent current();

  const std::string& name() const;                // of this process
  const std::vector<std::string>& world() const;  // AgentOptions::world

  // The process of that name, for calls with options.
  Destination to(std::string name, CallOptions options = {}) const {
    return Destination(core_, std::move(name), options);
  }
  // Those of Destination, for the process of that name.
  template <typename R = void, typename... Args>
  R rpc_sync(std::string name, std::string_view function, const Args&... args) const {
    return to(std::move(name)).template rpc_sync<R>(function, args...);
  }
  // Without waiting.
  template <typename R = void, typename... Args>
  Future<R> rpc_async(std::string name, std::string_view function, const Args&... args) const {
    return to(std::move(name)).template rpc_async<R>(function, args...);
  }
  // The result stays there.
  template <typename R, typename... Args>
  RRef<R> remote(std::string name, std::string_view function, const Args&... args) const {
    return to(std::move(name)).template remote<R>(function, args...);
  }
  // A reference to an object of this process.
  template <typename T>
  RRef<T> own(std::shared_ptr<T> object) const {
    return RRef<T>(
        internal::own_object(core_, std::make_shared<internal::TypedObject<T>>(std::move(object))));
  }

  // Shuts down in order: waits until this process's calls are complete and all of world() have
  // called shutdown() too (calls are served meanwhile). With a process that does not arrive, it
  // ends after `timeout` and throws Timeout that names it; the agent is down then, too. Must not be
  // called from a function that is being served.
  void shutdown(std::chrono::nanoseconds timeout = std::chrono::seconds(60));
  // Stops at once, without waiting for others: pending calls are Cancelled here and PeerLost at the
  // other ends. Waits up to 5 s for functions that are being served. The last handle of init() does
  // the same. Must not be called from a `quick` function.
  void stop();

  // The pending calls, oldest first.
  using PendingCall = rpc::PendingCall;
  std::vector<PendingCall> pending_calls() const;  // those that wait for an answer
  // The number of objects that are kept here for references, and of this process's references to
  // objects of others; for tests and leaks.
  size_t kept_objects() const;
  size_t held_references() const;  // to objects of others

  const std::shared_ptr<internal::Core>& core() const { return core_; }  // for this room

 private:
  std::shared_ptr<internal::Core> core_;
};

// Joins by name: processes find each other in `store`, which all that call each other share, and
// may come and go.
// Throws: InvalidArgument (the name is taken by a living process; no secret), StoreError,
// SystemError.
LOCKSTEP_API Agent init(const std::string& name, std::shared_ptr<Store> store, Registry registry,
                        AgentOptions options = {});
// Joins with all ranks of a communicator. The agents find each other by a store that rank 0 serves,
// and no longer depend on the communicator once this returns.
// Collective: all ranks call it.
// Throws: InvalidArgument on all of them also where two ranks register a function with different
// types; the communicator's errors.
LOCKSTEP_API Agent init(Communicator& comm, Registry registry, AgentOptions options = {});

// In a function that is being served: whether its caller has stopped waiting (its deadline passed,
// it cancelled, it is gone); the caller's name; its deadline. On other threads: false, "", none.
LOCKSTEP_API bool cancelled();
LOCKSTEP_API std::string caller();
// The deadline of the call that this thread serves; nullopt on other threads.
LOCKSTEP_API std::optional<Deadline> call_deadline();

template <typename T>
T RRef<T>::to_here() const
  requires Travels<T>
{
  return to_here_async().get();
}
template <typename T>
Future<T> RRef<T>::to_here_async() const
  requires Travels<T>
{
  auto call = std::make_shared<internal::TypedCall<T>>();
  internal::start_at_owner(checked(), "rpc.fetch", options_, call);
  return Future<T>(std::move(call));
}
template <typename T>
void RRef<T>::wait() const {
  auto call = std::make_shared<internal::TypedCall<void>>();
  internal::start_at_owner(checked(), "rpc.wait", options_, call);
  Future<void>(std::move(call)).get();
}
template <typename T>
Destination RRef<T>::to_owner() const {
  return Destination(internal::agent_of(checked()), owner(), options_, checked());
}
template <typename T>
template <typename R, typename... Args>
R RRef<T>::rpc_sync(std::string_view function, Args&&... args) const {
  return to_owner().template rpc_sync<R>(function, *this, std::forward<Args>(args)...);
}
template <typename T>
template <typename R, typename... Args>
Future<R> RRef<T>::rpc_async(std::string_view function, Args&&... args) const {
  return to_owner().template rpc_async<R>(function, *this, std::forward<Args>(args)...);
}
template <typename T>
template <typename R, typename... Args>
RRef<R> RRef<T>::remote(std::string_view function, Args&&... args) const {
  return to_owner().template remote<R>(function, *this, std::forward<Args>(args)...);
}

}  // namespace lockstep::inline v0::rpc
