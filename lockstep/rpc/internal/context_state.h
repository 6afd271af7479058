// ContextState: this process's part of a context of distributed autograd. Not a public header.
//
// Both ends record a call inside a context under its path. The caller's end is a node of its graph,
// RemoteBackward: its inputs are the tensors that were sent, its outputs those that came back. The
// other end computes on leaves of its own, and keeps them and the outputs. In backward the node
// sends the outputs' gradients there; that end runs its own part of the graph from the outputs to
// its leaves, keeps the parameters' gradients, and answers with the gradients of the sent tensors.
//
// A node whose call sent no tensors that require gradients need not wait for the answer: the pass
// waits at its end for all of them, so the parts of a pipeline's micro-batches run concurrently. A
// gradient that reaches a leaf of another call (an object that stayed here and was used again)
// returns to its sender separately, "late", and is run there afterwards.
//
// Source of the idea: PyTorch's "Distributed Autograd Design" (docs), FAST mode. There is no global
// bookkeeping of dependencies here: each process runs its part as autograd does.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/future.h"
#include "lockstep/rpc/internal/devices.h"
#include "lockstep/rpc/internal/gradient_sums.h"
#include "lockstep/rpc/message.h"

namespace lockstep::inline v0::rpc::internal {

class ContextState;

struct ContextId {
  uint64_t maker = 0, number = 0;
  friend auto operator<=>(const ContextId&, const ContextId&) = default;
};

}  // namespace lockstep::inline v0::rpc::internal

template <>
struct lockstep::rpc::Codec<lockstep::rpc::internal::ContextId> {
  using Id = internal::ContextId;
  static void describe(TypeText& text) { text += "context"; }
  static void write(Writer& writer, const Id& id) {
    writer.word(id.maker);
    writer.word(id.number);
  }
  static Id read(Reader& reader) {
    const uint64_t maker = reader.word();
    return {maker, reader.word()};
  }
};

namespace lockstep::inline v0::rpc::internal {

// The recording of a call, as its request describes it.
struct Recording {
  ContextId context;
  CallPath path;                    // of the call
  std::vector<uint32_t> gradients;  // which of its tensors require gradients
};

// The caller's end of a recorded call, until it has its answer.
class SentTensors {
 public:
  std::shared_ptr<ContextState> context;
  Recording recording;
  // The call's place among this thread's computations, as autograd counts them: backward runs later
  // ones first, whichever thread reads the answer.
  uint64_t sequence = 0;
  std::vector<at::Tensor> tensors;  // those that require gradients
  std::string peer;
};

// The common options of all passes of a round.
struct PassOptions {
  // The passes that backward() starts have one round; late gradients run in further rounds.
  uint64_t round = 0;
  bool retain_graph = false;
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("round", round);
    visit("retain_graph", retain_graph);
  }
};

// The answer of a pass: gradients of the sent tensors (undefined where there is none), and the
// number of gradients that returned late.
struct PassResult {
  std::vector<at::Tensor> gradients;
  int64_t late = 0;
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("gradients", gradients);
    visit("late", late);
  }
};

// Asks other processes of a context.
class ContextPeers {
 public:
  virtual ~ContextPeers() = default;
  // Runs the other end's part of the call `path` backward.
  virtual Future<PassResult> backward(const std::string& peer, ContextId id, const CallPath& path,
                                      const PassOptions& options,
                                      const std::vector<at::Tensor>& gradients) = 0;
  // Returns the gradient of tensor `place` of the call `sent` to its sender, from the pass of the
  // call `by`. `way`: to that process.
  virtual Future<PassResult> late(const std::string& peer, const DeviceWay& way, ContextId id,
                                  const CallPath& sent, int64_t place, const CallPath& by,
                                  const at::Tensor& gradient) = 0;
};

class ContextState : public std::enable_shared_from_this<ContextState> {
 public:
  ContextState(ContextId id, std::weak_ptr<ContextPeers> others);

  const ContextId id;

  // Caller: the record of a call's tensors; null outside of a context or where gradients are not
  // computed.
  std::shared_ptr<SentTensors> sent(const Tensors& tensors, const std::string& peer, CallPath path);
  // Caller: makes the returned tensors at `places` outputs of a RemoteBackward.
  static void attach(const std::shared_ptr<SentTensors>& sent, Tensors& received,
                     const std::vector<uint32_t>& places);

  // Callee: makes leaves of the tensors that require gradients. `way`: of the caller to this
  // process.
  void received(const Recording& recording, const DeviceWay& way, Tensors& tensors,
                const std::string& from);
  // Keeps the call's results that require gradients; returns their places. The calling thread may
  // be serving another call, which produced the value that this one waited for.
  std::vector<uint32_t> returned(const Recording& recording, const Tensors& results);

  // Runs the graph from `outputs` with their `gradients`; only nodes that need answers wait. `own`:
  // the call whose leaves are answered for; empty: none, this process starts the pass.
  Future<PassResult> run(std::vector<at::Tensor> outputs, std::vector<at::Tensor> gradients,
                         const PassOptions& options, const CallPath& own = {});
  // `from`: the process that asks; it must be the call's caller, otherwise throws InvalidArgument.
  Future<PassResult> run_record(const CallPath& path, const std::string& from,
                                std::vector<at::Tensor> gradients, const PassOptions& options);
  // Adds a gradient that returned late for a tensor that this process sent: tensor `place` of the
  // call `sent`, from the pass of the call `by`. It runs with the next run_late().
  void late(const CallPath& sent, int64_t place, const CallPath& by, at::Tensor gradient);
  Future<PassResult> run_late(const PassOptions& options);

  // The parameter's gradient in this context; undefined: none. Called between passes.
  at::Tensor gradient_of(const at::Tensor& parameter);
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients();  // of all parameters

  // Called when the context has ended: releases all tensors. Its graphs own it, so it would
  // otherwise never be freed.
  void clear() noexcept;

  std::set<std::string> peers() const;  // the peers of calls in this context
  // For RemoteBackward: makes the pass that runs in this thread wait for `answer`.
  void wait_for(Future<PassResult> answer);

 private:
  struct Record {
    std::string from;  // the caller
    DeviceWay way;
    std::vector<at::Tensor> leaves, outputs;
  };
  struct Origin {
    const CallPath* path = nullptr;  // null unless it belongs to a record
    size_t place = 0;
  };
  struct Late {
    CallPath by, sent;
    int64_t place = 0;
    at::Tensor tensor, gradient;
  };
  void begin_round(uint64_t round) LOCKSTEP_REQUIRES(mutex_);

  const std::weak_ptr<ContextPeers> others_;
  // A leaf that every RemoteBackward leads to, since autograd runs only nodes that lead to a leaf.
  const at::Tensor root_;
  mutable Mutex mutex_;
  std::map<CallPath, Record> records_ LOCKSTEP_GUARDED_BY(mutex_);  // calls that are served here
  std::map<const c10::TensorImpl*, Origin> origins_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<CallPath, std::shared_ptr<SentTensors>> sent_ LOCKSTEP_GUARDED_BY(mutex_);
  GradientSums gradients_ LOCKSTEP_GUARDED_BY(mutex_);
  uint64_t round_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // Calls that may still run in the round.
  std::set<CallPath> unfinished_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Late> late_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<std::string> peers_ LOCKSTEP_GUARDED_BY(mutex_);
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // nothing is kept any more

  friend class RemoteBackward;
};

// Gives the calls of one function, or of an AutogradContext's thread, their paths.
class Recorder {
 public:
  Recorder(std::shared_ptr<ContextState> context, CallPath path)
      : context(std::move(context)), path_(std::move(path)) {}
  const std::shared_ptr<ContextState> context;
  // From any thread, since a function may continue on another one. Throws InvalidArgument where
  // calls nest too deeply.
  CallPath next_call();

 private:
  const CallPath path_;
  std::atomic<uint32_t> calls_ = 0;
};

}  // namespace lockstep::inline v0::rpc::internal
