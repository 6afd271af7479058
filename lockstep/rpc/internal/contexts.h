// What distributed autograd remembers of each context in this process. Not a public header.
//
// A call inside a context is recorded at both ends under its path. The caller's end is a node of its graph, RemoteBackward: its
// inputs are the tensors that were sent, its outputs those that came back. The other end computes on leaves of its own,
// and keeps them and the outputs. In backward the node sends the outputs' gradients there; that end runs its own part of the graph
// from the outputs to its leaves, keeps what parameters get, and answers with the gradients of what was sent.
//
// A node whose call sent nothing that wants gradients need not wait for the answer: the pass waits at its end for all of them, so the
// parts of a pipeline's micro-batches run side by side. What reaches a leaf of another call (an object that stayed here and
// was used again) goes back to its sender by itself, "late", and is run there afterwards.
//
// Source of the idea: PyTorch's "Distributed Autograd Design" (docs), FAST mode; here there is no global bookkeeping of dependencies,
// each process runs its part as autograd does.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
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
#include "lockstep/rpc/pending.h"
#include "lockstep/rpc/registry.h"

namespace lockstep::rpc::internal {

class ContextState;
class Core;

struct ContextId {
  uint64_t maker = 0, number = 0;
  friend auto operator<=>(const ContextId&, const ContextId&) = default;
};

}  // namespace lockstep::rpc::internal

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

namespace lockstep::rpc::internal {

// What a request says of its recording.
struct Recording {
  ContextId context;
  CallPath path;                    // of the call
  std::vector<uint32_t> gradients;  // which of its tensors want gradients
};

// The caller's end of a recorded call, until it has its answer.
class SentTensors {
 public:
  std::shared_ptr<ContextState> context;
  Recording recording;
  // Of the call among what this thread computes, as autograd counts: backward runs the later first, whichever thread reads the answer.
  uint64_t sequence = 0;
  std::vector<at::Tensor> tensors;  // those that want gradients
  std::string peer;
};

// What all passes of a round have in common.
struct PassOptions {
  // The passes that backward() begins are one; late gradients are run in further ones.
  uint64_t round = 0;
  bool retain_graph = false;
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("round", round);
    visit("retain_graph", retain_graph);
  }
};

// What a pass answers: gradients of what was sent (undefined where there is none), and how many went back late.
struct PassResult {
  std::vector<at::Tensor> gradients;
  int64_t late = 0;
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("gradients", gradients);
    visit("late", late);
  }
};

// What a round of late gradients has done.
struct LateResult {
  int64_t late = 0;
  std::vector<std::string> asked;
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("late", late);
    visit("asked", asked);
  }
};

class ContextState : public std::enable_shared_from_this<ContextState> {
 public:
  ContextState(ContextId id, std::weak_ptr<Core> core);

  const ContextId id;

  // Caller: what is to be recorded of a call's tensors; null outside of a context or where gradients are not computed.
  std::shared_ptr<SentTensors> sent(const Tensors& tensors, const std::string& peer, CallPath path);
  // Caller: the tensors that came back, those of `places` as outputs of a RemoteBackward.
  static void attach(const std::shared_ptr<SentTensors>& sent, Tensors& received,
                     const std::vector<uint32_t>& places);

  // The other end: makes leaves of the tensors that want gradients.
  // `way`: of the caller to this process.
  void received(const Recording& recording, const DeviceWay& way, Tensors& tensors,
                const std::string& from);
  // Keeps the call's results that want gradients; -> their places. The thread may serve another call, which has made what this one
  // waited for.
  std::vector<uint32_t> returned(const Recording& recording, const Tensors& results);

  // Runs the graph from `outputs` with their `gradients`; waits for nobody but nodes that need answers. `own`: the call whose
  // leaves are answered for; empty: none, this process begins the pass.
  Future<PassResult> run(std::vector<at::Tensor> outputs, std::vector<at::Tensor> gradients,
                         const PassOptions& options, const CallPath& own = {});
  // `from`: who asks; its caller, or InvalidArgument.
  Future<PassResult> run_record(const CallPath& path, const std::string& from,
                                std::vector<at::Tensor> gradients, const PassOptions& options);
  // A gradient that came back late for a tensor that this process sent, `place` among those of the call `sent`, from the pass of the
  // call `by`; runs with the next run_late().
  void late(const CallPath& sent, int64_t place, const CallPath& by, at::Tensor gradient);
  Future<PassResult> run_late(const PassOptions& options);

  // The parameter's gradient in this context; undefined: none. Between passes.
  at::Tensor gradient_of(const at::Tensor& parameter);
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients();  // of all parameters

  // It has ended: lets go of all tensors. Its graphs lead back to it, so it would stay for ever otherwise.
  void clear() noexcept;

  std::set<std::string> peers() const;  // whom calls in this context went to
  void wait_for(
      Future<PassResult> answer);  // for RemoteBackward: of the pass that runs in this thread

 private:
  struct Record {
    std::string from;  // the caller
    DeviceWay way;
    std::vector<at::Tensor> leaves, outputs;
  };
  struct Origin {
    const CallPath* path = nullptr;  // of a record
    size_t place = 0;
  };
  struct Late {
    CallPath by, sent;
    int64_t place = 0;
    at::Tensor tensor, gradient;
  };
  void begin_round(uint64_t round) LOCKSTEP_REQUIRES(mutex_);

  const std::weak_ptr<Core> core_;
  const at::Tensor
      root_;  // a leaf that every RemoteBackward leads to: autograd runs what leads to a leaf
  mutable Mutex mutex_;
  std::map<CallPath, Record> records_ LOCKSTEP_GUARDED_BY(mutex_);  // calls that are served here
  std::map<const c10::TensorImpl*, Origin> origins_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<CallPath, std::shared_ptr<SentTensors>> sent_ LOCKSTEP_GUARDED_BY(mutex_);
  GradientSums gradients_ LOCKSTEP_GUARDED_BY(mutex_);
  uint64_t round_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // Calls that may yet run in the round.
  std::set<CallPath> unfinished_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Late> late_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<std::string> peers_ LOCKSTEP_GUARDED_BY(mutex_);
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // nothing is kept any more

  friend class RemoteBackward;
};

// Gives the calls that one function makes, or the thread of an AutogradContext, their paths.
class Recorder {
 public:
  Recorder(std::shared_ptr<ContextState> context, CallPath path)
      : context(std::move(context)), path_(std::move(path)) {}
  const std::shared_ptr<ContextState> context;
  // By any thread: a function may go on in another one. Throws InvalidArgument where calls nest too deep.
  CallPath next_call();

 private:
  const CallPath path_;
  std::atomic<uint32_t> calls_ = 0;
};

// The functions of the agent's own that backward needs.
void register_autograd(Core& core, Registry& registry);
// Runs this process's late gradients and those of everybody whom it called, but for `asked`.
LateResult run_late_everywhere(Core& core, ContextState& state, const PassOptions& options,
                               std::vector<std::string> asked);

// The contexts that this process has a part in.
class Contexts {
 public:
  Contexts() = default;
  ~Contexts();
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;

  // `caller`: the incarnation of who calls in it. Null: it has ended, and is not made anew by a call that was under way.
  std::shared_ptr<ContextState> find_or_make(ContextId id, uint64_t caller,
                                             const std::weak_ptr<Core>& core);
  std::shared_ptr<ContextState> find(ContextId id) const;  // null: not here
  // It has ended, whether it is here or not; -> who was called in it from here.
  std::set<std::string> release(ContextId id);
  // Those that end with a process: it made them, or nobody else has called in them here.
  std::vector<ContextId> ending_with(uint64_t process);
  size_t size() const;

 private:
  struct Part {
    std::shared_ptr<ContextState> state;
    std::set<uint64_t> callers;
  };
  // Of contexts that ended: what comes later for them was under way.
  static constexpr size_t kEnded = 4096;

  mutable Mutex mutex_;
  std::map<ContextId, Part> contexts_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<ContextId> ended_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<ContextId> ended_in_order_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rpc::internal
