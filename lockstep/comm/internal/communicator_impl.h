// The implementation of Communicator: one path that every operation takes. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <initializer_list>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/internal/compose.h"
#include "lockstep/comm/internal/device_watch.h"
#include "lockstep/comm/internal/job_progress.h"
#include "lockstep/comm/internal/op_counters.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/set_once.h"
#include "lockstep/device/graph.h"

namespace lockstep::inline v0 {

// The arguments of a public operation, in tensors. Counts are in elements.
struct OpArgs {
  Op op = Op::kBarrier;
  at::Tensor input;   // undefined where the rank gives no input
  at::Tensor output;  // undefined where it gets no output
  ReduceOp reduce = ReduceOp::kSum;
  int root = -1;
  int peer = -1;
  int tag = 0;
  std::vector<int64_t> counts;
  std::vector<int64_t> recv_counts;
  bool v_form = false;
  CallNote note;
  Site site;
};

// A pending operation, with everything that must live until it is complete.
struct PendingOp {
  std::unique_ptr<Request> request;
  std::vector<at::Tensor> keep;
  std::function<void()> finish;  // puts staged results into the caller's tensors
  uint64_t call = 0;             // its number on the call board
  Op op = Op::kBarrier;          // as the engine carries it
  bool ordered = false;          // its wait orders the device's stream
  uint64_t capture = 0;          // the capture that it is part of; 0: none
  bool done = false;
  bool over = false;       // complete in the engine, though no wait has returned for it yet
  bool end_noted = false;  // on the board
  std::list<std::shared_ptr<PendingOp>>::iterator place;  // in the list of pending operations
};

class Communicator::Impl final : private SiblingProgress, private JobProgress::Member {
 public:
  // `host` carries the host's tensors and barriers where the memory of `backend` is a device's.
  // Null: `backend` carries them. Two engines require an origin in the options.
  Impl(std::unique_ptr<Backend> backend, Topology topology, CommunicatorOptions options,
       std::unique_ptr<Backend> host = nullptr);
  ~Impl() override;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // The part of this communicator whose engine carries the call: the device's where a tensor is on
  // a device.
  Impl& carrier(const OpArgs& args);

  // check -> plan -> stage -> sequence number -> board -> backend. Called on the carrier.
  std::shared_ptr<PendingOp> start(const OpArgs& args);
  // start() and wait. Where nothing has to be staged it takes the short path, which keeps nothing.
  void run(const OpArgs& args);
  SymmetricMemory allocate_together(const char* who, int64_t bytes,
                                    SymmetricMemory (Backend::*allocate)(int64_t), Site site);
  // The shortest path, for broadcast and all_reduce of a tensor that the engine takes as it is.
  // Small calls complete in a fraction of a microsecond, so little time may be spent here.
  void run_in_place(Op op, const at::Tensor& tensor, ReduceOp reduce, int root, Site site);
  at::Tensor shared_empty(at::IntArrayRef shape, at::ScalarType dtype, Site site);
  at::Tensor symmetric_empty(at::IntArrayRef shape, at::ScalarType dtype, Site site);
  void wait(PendingOp& operation, Deadline deadline);
  bool test(PendingOp& operation);
  void progress();
  Probe probe(int src, int tag);
  // kGroups: also all groups that were made of this one, since ranks that wait in them are to learn
  // that this one does not come.
  enum class Reach : uint8_t { kDuplicates, kGroups };
  void abort(const std::string& reason, Reach reach = Reach::kDuplicates) noexcept;
  void name_ranks(std::vector<std::string> titles);
  // Whether an engine knows that the rank is lost.
  bool lost(int rank) const;
  void throw_if_any_broken();  // for this communicator or a duplicate
  // Throws InvalidArgument, which begins with `what`, where this thread may not call the engine.
  // Nothing has been sent or numbered then.
  void check_caller(const char* what) const {
    if (const char* why = backend_->refuses_caller()) refuse_caller(what, why);
  }
  // Registers a group that was made of this one, for abort().
  enum class Derived : uint8_t { kDuplicate, kGroup };
  void add_derived(const std::shared_ptr<Impl>& one, Derived kind);

  const Topology& topology() const { return topology_; }
  const CommunicatorOptions& options() const { return options_; }
  const Capabilities& capabilities() const { return backend_->capabilities(); }
  const Capabilities& host_capabilities() const {
    return host_ ? host_->capabilities() : capabilities();
  }
  CommunicatorStats stats() const;
  CommunicatorStats job_stats() const { return job_ ? job_->stats() : stats(); }
  double waited() const { return waited_->seconds(); }

 private:
  class Entry;
  // The caller that is inside.
  enum Inside : int { kNobody, kCaller, kSibling };  // kSibling: a wait in another communicator
  // SiblingProgress for the engine: the other pending operations of the job.
  bool pending() const noexcept override;
  void move() noexcept override;
  std::string report_wait(const Call& call, const std::vector<int>& awaited,
                          bool moved) noexcept override;
  // JobProgress::Member, for waits in the other communicators.
  bool move_if_free() noexcept override;
  const std::string& group() const noexcept override;
  uint64_t called() const noexcept override { return collectives_.load(); }
  CommunicatorStats counted() const noexcept override { return counters_.read(); }
  [[noreturn]] static void refuse_caller(const char* what, const char* why);
  void note_pending_ops();  // called after a pending operation was added or has ended
  bool over(PendingOp& operation) noexcept;
  void note_ends() noexcept;  // of pending operations, where the board wants to know them
  // Tells the board that the call will not end; the second one, that no pending operation will.
  void abandon(uint64_t call) noexcept;
  void abandon_pending_ops() noexcept;
  // Whether a profiler is to see the host's part of the calls.
  bool marks_calls() const noexcept;
  Plan check(const OpArgs& args) const;
  // The capture that this thread's call is part of, or null. Throws if the call cannot be captured.
  device::Capture* capture_of(const OpArgs& args) const;
  void check_host_call() const;   // the same for a call that the host engine carries
  void check_host_alone() const;  // the same where there is no device engine
  // The note under which ranks compare a captured call; it differs from the eager call's.
  static CallNote note_of_captured(const CallNote& note, std::string& text);
  // Whether this thread's stream is being captured, for an operation that orders it. Throws if the
  // operation is not part of that capture.
  bool orders_capture(const PendingOp& operation) const;
  // Makes this communicator part of the graph's replays.
  void take_part(device::Capture& capture, Site site);
  struct Replay;
  void start_replay(Replay& replay);
  void meet_replay(Replay& replay);
  void end_replay(Replay& replay);
  void cancel_replay(Replay& replay) noexcept;
  void fill(const OpArgs& args, const Plan& plan, Call& call) const;
  void stage(const OpArgs& args, const Plan& plan, Call& call, PendingOp& operation) const;
  // Payload bytes of the whole tensor, as the caller sees it (CommunicatorStats).
  static uint64_t payload(const OpArgs& args);
  void number(Op op, uint64_t bytes, Call& call);
  std::shared_ptr<PendingOp> launch(const OpArgs& args, const Plan& plan);
  void run_call(Call& call, std::initializer_list<const at::Tensor*> tensors);
  // Hands over to the watch an operation that the host stops waiting for while the device still
  // runs it. `first_for`: DeviceWatch::Operation's.
  void trail(PendingOp& operation, std::shared_ptr<Tail> tail, Deadline deadline,
             std::chrono::nanoseconds first_for = {});
  // Checks a watched operation, on the watch's thread.
  bool look(DeviceWatch::Operation& operation);
  void complete(PendingOp& operation);
  void finish(PendingOp& operation);
  // Breaks the communicator with the exception that is being handled, and returns the exception to
  // throw for it (named_in_job()).
  std::exception_ptr set_broken() noexcept;
  // Breaks this part with the error that broke the other engine's part. From any thread.
  void break_with(const std::exception_ptr& error, const Breakage& why) noexcept;
  // Tells the thread that is inside the engine to stop; the engine itself is used by one thread at
  // a time.
  void end_engine(const Breakage& why) noexcept;
  // For messages: " on cuda:0"; "" where there is one engine.
  std::string place() const;
  void throw_if_broken() const {
    if (const std::exception_ptr* error = broken_.get()) std::rethrow_exception(*error);
  }
  // `waits`: the rank is in the call until it ends.
  uint64_t record(Call& call, trace::CallRecord& record, bool waits);
  // Numbers, records and starts the call of this operation, which is pending afterwards. Called
  // from inside.
  void submit(const std::shared_ptr<PendingOp>& operation, uint64_t bytes, Call& call);

  Topology topology_;
  CommunicatorOptions options_;
  OpCounters counters_;
  std::atomic<uint64_t> collectives_{0};  // read by other threads
  uint64_t messages_ = 0;
  uint32_t group_ = 0;                              // the number of the group in the records
  at::Device device_{at::kCPU};                     // the backend's device
  uint32_t native_[kOpCount][kReduceOpCount] = {};  // bit i: at::ScalarType(i) is passed as it is
  std::atomic<int> inside_{kNobody};
  std::shared_ptr<JobProgress> job_;
  bool entered_ = false;  // whether this communicator is registered in job_
  WaitedTicks own_waited_;
  WaitedTicks* waited_ = &own_waited_;  // or the job's
  struct DerivedImpl {
    std::weak_ptr<Impl> impl;
    Derived kind;
  };
  Mutex derived_mutex_;
  std::vector<DerivedImpl> derived_ LOCKSTEP_GUARDED_BY(derived_mutex_);
  // For a wait that lasts: the collective, its start, the time of the next check, and whether
  // anything has moved since the last one.
  uint64_t blocked_on_ = 0;
  std::chrono::steady_clock::time_point stands_since_{};
  std::chrono::steady_clock::time_point look_at_{};
  bool moved_ = false;
  SetOnce<std::exception_ptr> broken_;  // may be set by abort(), on any thread
  bool told_ = false;                   // on_broken was called
  // The engine's; null unless its operations end on a device's stream.
  DeviceOrder* order_ = nullptr;
  // Outlives backend_: the engine may still touch the memory of these operations.
  std::list<std::shared_ptr<PendingOp>> pending_ops_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceWatch> watch_;  // null: the device was never given anything
  // The host engine's part of a communicator with two engines. It has its own sequence numbers and
  // group name, so that ranks in different parts are found like ranks in different groups.
  // `beside_` is the other part.
  std::unique_ptr<Impl> host_;
  Impl* beside_ = nullptr;
  std::atomic<bool> broken_with_{false};  // the other part broke first
  uint64_t capture_ = 0;                  // the last capture that this is part of
  uint64_t graphs_ = 0;                   // the number of graphs that this is part of so far
  std::shared_ptr<char> alive_ = std::make_shared<char>();
};

// Refuses a second thread inside the communicator, except a broken one, in which abort() may still
// be inside. Where another thread's wait is progressing operations here, it waits the short time
// until that is over.
class Communicator::Impl::Entry {
 public:
  explicit Entry(Impl& impl) : inside_(impl.inside_) {
    for (int found = kNobody;
         !inside_.compare_exchange_weak(found, kCaller, std::memory_order_acq_rel);
         found = kNobody) {
      if (found == kCaller) {
        impl.throw_if_broken();
        throw InvalidArgument(
            "two threads are inside one communicator; use it from one thread at a time, or give "
            "each thread its own");
      }
      if (found != kSibling) continue;
      // Ending a broken engine may take its time there.
      impl.throw_if_broken();
      ::sched_yield();
    }
    if (impl.job_) impl.job_->note_thread(std::this_thread::get_id());
  }
  ~Entry() { inside_.store(kNobody, std::memory_order_release); }

 private:
  std::atomic<int>& inside_;
};

// One operation, or several that count as one.
class Work::State {
 public:
  State(std::shared_ptr<Communicator::Impl> impl, std::shared_ptr<PendingOp> operation)
      : impl_(std::move(impl)), operation_(std::move(operation)) {}
  // `after` runs once, when all parts are complete.
  State(std::vector<Work> parts, std::function<void()> after)
      : parts_(std::move(parts)), after_(std::move(after)) {}

  bool test();
  void wait(const Deadline* deadline);  // null: the communicator's time-out

 private:
  void finish();

  std::shared_ptr<Communicator::Impl> impl_;
  std::shared_ptr<PendingOp> operation_;
  std::vector<Work> parts_;
  std::function<void()> after_;
};

inline const std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}
inline std::byte* mutable_data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

}  // namespace lockstep::inline v0
