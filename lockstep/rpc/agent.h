// Agent: this process's end of remote calls: point to point, by name, at any time, from any thread.
//
//   rpc::Registry registry;
//   registry.add("matmul", [](const at::Tensor& a, const at::Tensor& b) { return a.matmul(b); });
//   rpc::Agent agent = rpc::init(comm, registry, {.name = "worker" + std::to_string(comm.rank())});
//   at::Tensor c = agent.rpc_sync<at::Tensor>("worker1", "matmul", a, b);
//   rpc::Future<at::Tensor> f = agent.rpc_async<at::Tensor>("worker1", "matmul", a, b);
//   rpc::RRef<Net> net = agent.remote<Net>("worker1", "make_net", 128);
//   agent.shutdown();
//
// A call's types are those of its arguments (string literals are strings, vectors vectors ...) and the R that is asked for; the
// function's own are compared with them where it is called. A tensor arrives with its own storage; its contents must not
// change until the call has returned. Tensors on devices go by a map of devices that the caller sets for the peer
// (AgentOptions::set_device_map), and results come back by it; without one they are refused.
//
// Every call has a deadline, and those made while serving it end by the same one; they are Cancelled when its caller
// cancels it or is gone. What does not come in time is Timeout, and the other end is told; a process that is gone fails all
// its pending calls at once (PeerLost), and whoever comes back under its name is found by the next call. Calls to one's
// own name are calls like any others.
//
// How much waits is bounded: calls in flight and bytes in the queue for each peer. Beyond it a call waits for room, at
// most until its deadline, and then says so.
//
// Threads: AgentOptions::workers for calls, one more, and, once a reference has come whose owner is not known here, one that connects to
// such owners, once a tensor of a device is sent, one that waits for its copy; no others. A call that waits inside a function
// keeps its worker: use as many workers as such calls nest, or let the function return a Future.
//
// Method: calls by registered name with futures and references as in PyTorch's RPC (Damania et al., "PyTorch RPC: Distributed Deep Learning
// Built on Tensor-Optimized Remote Procedure Calls", MLSys 2023).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/secret.h"
#include "lockstep/rpc/call_options.h"
#include "lockstep/rpc/codec.h"
#include "lockstep/rpc/device_map.h"
#include "lockstep/rpc/future.h"
#include "lockstep/rpc/pending.h"
#include "lockstep/rpc/registry.h"
#include "lockstep/rpc/rref.h"
#include "lockstep/store/store.h"

namespace lockstep {
class Communicator;
}

namespace lockstep::rpc {

struct AgentOptions {
  std::string name = {};  // init(comm): "worker<rank>" where empty
  int workers = 4;        // threads that serve calls, besides the one that receives
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);  // of a call that has no other
  // For each peer: beyond them a call waits for room.
  size_t calls_in_flight = size_t{1} << 20;
  size_t queued_bytes = size_t{1} << 30;
  // After so much silence of a process its references count no longer.
  std::chrono::nanoseconds lease = std::chrono::seconds(30);
  // Where this process can be reached over TCP: a numeric address of its own. Beyond loopback every connection proves the job's
  // secret as well, but what is sent is not encrypted.
  std::string listen = "127.0.0.1";
  // The names of all who take part, where they are known: shutdown() waits for them. init(comm) fills it.
  std::vector<std::string> world = {};
  // The job's secret; else LOCKSTEP_SECRET_FD, LOCKSTEP_SECRET_FILE, LOCKSTEP_SECRET.
  std::optional<Secret> secret = {};
  // By peer. Calls to one's own name need none: there every device stands for itself.
  std::map<std::string, DeviceMap> device_maps = {};

  // {{at::Device("cuda:0"), at::Device("cuda:1")}}: tensors of this process's cuda:0 arrive on the peer's cuda:1, and those
  // that it answers with on cuda:1 arrive here on cuda:0; gradients of distributed autograd likewise. init() throws
  // InvalidArgument for a device that is not there, that is the CPU, or that is mapped twice; init(comm) also where no rank has
  // the name, or that rank lacks the device, on all ranks.
  void set_device_map(const std::string& peer, DeviceMap map) {
    device_maps.insert_or_assign(peer, std::move(map));
  }
};

namespace internal {

// The type that travels for an argument of type A.
template <typename A>
struct Sent {
  using type = A;
};
template <>
struct Sent<const char*> {
  using type = std::string;
};
template <>
struct Sent<char*> {
  using type = std::string;
};
template <>
struct Sent<std::string_view> {
  using type = std::string;
};
template <typename A>
using SentFor = typename Sent<std::decay_t<A>>::type;

template <typename... A>
void write_all(Core& core, Writer& writer, const A&... arguments) {
  try {
    (Codec<SentFor<A>>::write(writer, arguments), ...);
  } catch (...) {
    drop_written(core, writer);
    throw;
  }
}

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

// The functions of one peer, with options for their calls. A handle.
class Destination {
 public:
  // `owned`: a reference, whose owner it is and nobody else; null: whoever has the name.
  Destination(std::shared_ptr<internal::Core> core, std::string name, CallOptions options,
              internal::ReferencePtr owned = nullptr)
      : core_(std::move(core)),
        name_(std::move(name)),
        options_(options),
        owned_(std::move(owned)) {}

  // Calls `function` and waits for what it returns. Throws RemoteError, Timeout, PeerLost, Cancelled, InvalidArgument (an
  // argument that cannot travel).
  template <typename R = void, typename... Args>
  R rpc_sync(std::string_view function, const Args&... args) const {
    return start<R>(internal::How::kSync, function, args...).get();
  }
  // The same without waiting; what goes wrong is in the future, but for InvalidArgument.
  template <typename R = void, typename... Args>
  Future<R> rpc_async(std::string_view function, const Args&... args) const {
    return start<R>(internal::How::kAsync, function, args...);
  }
  // Calls it and leaves what it returns there, as an R. Does not wait: what goes wrong shows when the reference is used.
  template <typename R, typename... Args>
  RRef<R> remote(std::string_view function, const Args&... args) const {
    Writer& writer = internal::scratch_writer(core_);
    internal::write_all(*core_, writer, args...);
    using Types = internal::CallTypes<R, Args...>;
    return RRef<R>(internal::start_remote(core_, name_, function, Types::hash(), Types::text(),
                                          writer, options_, owned_));
  }

 private:
  template <typename R, typename... Args>
  Future<R> start(internal::How how, std::string_view function, const Args&... args) const {
    Writer& writer = internal::scratch_writer(core_);
    internal::write_all(*core_, writer, args...);
    using Types = internal::CallTypes<R, Args...>;
    auto call = std::make_shared<internal::TypedCall<R>>();
    internal::start_call(core_, name_, function, Types::hash(), Types::text(), writer, options_,
                         how, call, owned_);
    return Future<R>(std::move(call));
  }

  std::shared_ptr<internal::Core> core_;
  std::string name_;
  CallOptions options_;
  internal::ReferencePtr owned_;
};

class Agent {
 public:
  explicit Agent(std::shared_ptr<internal::Core> core) : core_(std::move(core)) {}
  // The agent whose call this thread serves. Throws InvalidArgument elsewhere. It does not keep the agent running.
  static Agent current();

  const std::string& name() const;
  const std::vector<std::string>& world() const;  // AgentOptions::world

  Destination to(std::string name, CallOptions options = {}) const {
    return Destination(core_, std::move(name), options);
  }
  template <typename R = void, typename... Args>
  R rpc_sync(std::string name, std::string_view function, const Args&... args) const {
    return to(std::move(name)).template rpc_sync<R>(function, args...);
  }
  template <typename R = void, typename... Args>
  Future<R> rpc_async(std::string name, std::string_view function, const Args&... args) const {
    return to(std::move(name)).template rpc_async<R>(function, args...);
  }
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

  // Ends in order: waits until this process's calls are done and everybody of world() has come here, too (calls are
  // served meanwhile), then ends. With a process that does not come it ends after `timeout` and throws Timeout that names
  // it; the agent is down then, too. Not from a function that is being served.
  void shutdown(std::chrono::nanoseconds timeout = std::chrono::seconds(60));
  // At once, without waiting for others: pending calls are Cancelled here, PeerLost at the other ends. Waits up to 5 s for functions
  // that are being served. Not from a `quick` function. What the last handle of init() does.
  void stop();

  // What is pending now, for people: calls to others and calls of others, oldest first, with their age.
  struct PendingCall {
    bool incoming = false;
    std::string peer, function;
    double seconds = 0;
  };
  std::vector<PendingCall> pending_calls() const;
  // How many objects are kept here for references, and how many shares of others' this process has; for tests and leaks.
  size_t kept_objects() const;
  size_t held_references() const;

  const std::shared_ptr<internal::Core>& core() const { return core_; }

 private:
  std::shared_ptr<internal::Core> core_;
};

// Joins by name: others are found in `store`, which all who call each other share, and may come and go. Throws
// InvalidArgument (the name is taken by a process that lives; no secret), StoreError, SystemError.
Agent init(const std::string& name, std::shared_ptr<Store> store, Registry registry,
           AgentOptions options = {});
// Joins with all ranks of a communicator; collective. The agents find each other by a store that rank 0 serves, and depend on the
// communicator no longer when it returns. Throws InvalidArgument on all of them, too, where two ranks register a function with
// different types, and what the communicator throws.
Agent init(Communicator& comm, Registry registry, AgentOptions options = {});

// In a function that is being served: whether its caller waits no longer (its deadline passed, it cancelled, it is gone);
// who it is; by when it wants the answer. Elsewhere: false, "", none.
bool cancelled();
std::string caller();
std::optional<Deadline> call_deadline();

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
  internal::start_fetch(checked(), options_, call);
  return Future<T>(std::move(call));
}
template <typename T>
void RRef<T>::wait() const {
  auto call = std::make_shared<internal::TypedCall<void>>();
  internal::start_wait(checked(), options_, call);
  Future<void>(std::move(call)).get();
}
template <typename T>
template <typename R, typename... Args>
R RRef<T>::rpc_sync(std::string_view function, Args&&... args) const {
  return internal::destination_of(checked(), options_)
      .template rpc_sync<R>(function, *this, std::forward<Args>(args)...);
}
template <typename T>
template <typename R, typename... Args>
Future<R> RRef<T>::rpc_async(std::string_view function, Args&&... args) const {
  return internal::destination_of(checked(), options_)
      .template rpc_async<R>(function, *this, std::forward<Args>(args)...);
}
template <typename T>
template <typename R, typename... Args>
RRef<R> RRef<T>::remote(std::string_view function, Args&&... args) const {
  return internal::destination_of(checked(), options_)
      .template remote<R>(function, *this, std::forward<Args>(args)...);
}

}  // namespace lockstep::rpc
