// The inside of Communicator: one path that every operation takes. Not a public header.
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

#include "lockstep/comm/backend.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/compose.h"
#include "lockstep/comm/device_watch.h"
#include "lockstep/comm/job_progress.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/set_once.h"
#include "lockstep/device/graph.h"

namespace lockstep {

// What a public operation asks for, in tensors. Counts are in elements.
struct Ask {
  Op op = Op::kBarrier;
  at::Tensor input;   // undefined where the rank gives none
  at::Tensor output;  // undefined where it gets none
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

// An operation under way, with all that must live until it is over.
struct Flight {
  std::unique_ptr<Request> request;
  std::vector<at::Tensor> keep;
  std::function<void()> finish;  // puts staged results into the caller's tensors
  uint64_t call = 0;             // on the board
  bool ordered = false;          // its wait orders the device's stream
  uint64_t capture = 0;          // that it is part of; 0: none
  bool done = false;
  bool over = false;  // for the engine, though nobody has waited for it yet
  std::list<std::shared_ptr<Flight>>::iterator place;  // among those under way
};

class Communicator::Impl final : private Elsewhere, private JobProgress::Member {
 public:
  // `host`: carries the host's tensors and barriers, where the memory of `backend` is a device's;
  // null: that one does. Two engines want an origin.
  Impl(std::unique_ptr<Backend> backend, Topology topology, CommunicatorOptions options,
       std::unique_ptr<Backend> host = nullptr);
  ~Impl() override;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Of the two engines' parts the one that carries it: the device's where a tensor is a device's.
  Impl& carrier(const Ask& ask);

  // check -> plan -> stage -> sequence number -> board -> backend. Of the carrier.
  std::shared_ptr<Flight> start(const Ask& ask);
  // The same and wait: the short way, which keeps nothing, where nothing has to be staged.
  void run(const Ask& ask);
  SymmetricMemory allocate_together(const char* who, int64_t bytes,
                                    SymmetricMemory (Backend::*allocate)(int64_t), Site site);
  // The shortest way, for broadcast and all_reduce of a tensor that the engine takes as it is:
  // small ones are over in a fraction of a microsecond, of which little may be spent here.
  void run_in_place(Op op, const at::Tensor& tensor, ReduceOp reduce, int root, Site site);
  at::Tensor shared_empty(at::IntArrayRef shape, at::ScalarType dtype, Site site);
  at::Tensor symmetric_empty(at::IntArrayRef shape, at::ScalarType dtype, Site site);
  void wait(Flight& flight, Deadline deadline);
  bool test(Flight& flight);
  void progress();
  Probe probe(int src, int tag);
  void abort(const std::string& reason) noexcept;
  void name_ranks(std::vector<std::string> titles);
  // Known to an engine.
  bool lost(int rank) const;
  void throw_if_any_broken();  // this one, or a duplicate
  // A duplicate, which abort() reaches too.
  void add_twin(const std::shared_ptr<Impl>& twin);

  const Topology& topology() const { return topology_; }
  const CommunicatorOptions& options() const { return options_; }
  const Capabilities& capabilities() const { return backend_->capabilities(); }
  const Capabilities& host_capabilities() const {
    return host_ ? host_->capabilities() : capabilities();
  }
  CommunicatorStats stats() const;
  double waited() const { return waited_->seconds(); }

 private:
  class Entry;
  // Who is inside.
  enum Inside : int { kNobody, kCaller, kElsewhere };  // elsewhere: a wait in another communicator
  // Of what else the job has under way, for the engine.
  bool pending() const noexcept override;
  void move() noexcept override;
  std::string stand(const Call& call, const std::vector<int>& awaited,
                    bool moved) noexcept override;
  // For the others.
  bool move_if_free() noexcept override;
  const std::string& group() const noexcept override;
  uint64_t called() const noexcept override { return collectives_.load(); }
  void note_flights();  // after one was added or ended
  static bool over(Flight& flight) noexcept;
  Plan check(const Ask& ask) const;
  // The capture that a call of this thread is part of, or null. Throws for what cannot be.
  device::Capture* capture_of(const Ask& ask) const;
  void check_host_call() const;   // the same for a call that the host engine carries
  void check_host_alone() const;  // and for one where there is no device's
  // Other than the eager call in the ranks' comparison.
  static CallNote note_of_captured(const CallNote& note, std::string& text);
  // Whether this thread's stream is captured, for a flight that orders it. Throws for one that is not
  // of that capture.
  bool orders_capture(const Flight& flight) const;
  // This communicator is part of the graph's replays.
  void take_part(device::Capture& capture, Site site);
  struct Replay;
  void start_replay(Replay& replay);
  void meet_replay(Replay& replay);
  void end_replay(Replay& replay);
  void cancel_replay(Replay& replay) noexcept;
  void fill(const Ask& ask, const Plan& plan, Call& call) const;
  void stage(const Ask& ask, const Plan& plan, Call& call, Flight& flight) const;
  // Of the whole tensor, as the caller sees it (CommunicatorStats).
  static uint64_t payload(const Ask& ask);
  void number(Op op, uint64_t bytes, Call& call);
  std::shared_ptr<Flight> launch(const Ask& ask, const Plan& plan);
  void run_call(Call& call, std::initializer_list<const at::Tensor*> tensors);
  // The host is let go from it, though the device is not through with it.
  // `first_for`: DeviceWatch::Operation's.
  void trail(Flight& flight, std::shared_ptr<Tail> tail, Deadline deadline,
             std::chrono::nanoseconds first_for = {});
  bool look(DeviceWatch::Operation& operation);  // at what trails, on the watch's thread
  void complete(Flight& flight);
  void finish(Flight& flight);
  // By the exception that is being handled -> what to throw for it (named_in_job()).
  std::exception_ptr set_broken() noexcept;
  // By what broke the other engine's part. From any thread.
  void break_with(const std::exception_ptr& error, const Breakage& why) noexcept;
  // Whoever is inside learns of it there; the engine itself is one thread's at a time.
  void end_engine(const Breakage& why) noexcept;
  // In sentences: " on cuda:0"; "" where there is one engine.
  std::string place() const;
  void throw_if_broken() const {
    if (const std::exception_ptr* error = broken_.get()) std::rethrow_exception(*error);
  }
  uint64_t record(Call& call, trace::CallRecord& record);
  // Numbers, shows and starts the call of this flight, which is under way then. Inside.
  void submit(const std::shared_ptr<Flight>& flight, uint64_t bytes, Call& call);

  Topology topology_;
  CommunicatorOptions options_;
  CommunicatorStats stats_;
  std::atomic<uint64_t> collectives_{0};  // others look at it
  uint64_t messages_ = 0;
  uint32_t group_ = 0;                              // in the records
  at::Device device_{at::kCPU};                     // the backend's
  uint32_t native_[kOpCount][kReduceOpCount] = {};  // bit i: at::ScalarType(i) as it is
  std::atomic<int> inside_{kNobody};
  std::shared_ptr<JobProgress> job_;
  bool entered_ = false;  // in job_
  WaitedTicks own_waited_;
  WaitedTicks* waited_ = &own_waited_;  // or the job's
  Mutex twins_mutex_;
  std::vector<std::weak_ptr<Impl>> twins_ LOCKSTEP_GUARDED_BY(twins_mutex_);
  // Of a wait that lasts: for which collective, since when, when it is looked at again, and whether
  // anything has moved since the last look.
  uint64_t standing_ = 0;
  std::chrono::steady_clock::time_point stands_since_{};
  std::chrono::steady_clock::time_point look_at_{};
  bool moved_ = false;
  SetOnce<std::exception_ptr> broken_;  // perhaps by abort(), on any thread
  bool told_ = false;                   // on_broken was called
  bool ordered_ = false;                // the engine's operations end on a device's stream
  std::list<std::shared_ptr<Flight>>
      inflight_;  // outlives backend_: the engine may still touch their memory
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceWatch> watch_;  // null: the device was never given anything
  // The host engine's part of a communicator of two, with sequence numbers and a group's name of
  // its own: ranks that are in different parts are found as those in different groups. And the
  // other one.
  std::unique_ptr<Impl> host_;
  Impl* beside_ = nullptr;
  std::atomic<bool> broken_with_{false};  // the other one was broken first
  uint64_t capture_ = 0;                  // the last one that this is part of
  uint64_t graphs_ = 0;                   // that this is part of, so far
  std::shared_ptr<char> alive_ = std::make_shared<char>();
};

// Refuses a second thread inside the communicator, unless that is broken, by an abort() that may
// still be inside. Where another thread's wait moves what is under way here, it is over soon.
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
      if (found != kElsewhere) continue;
      // What ends a broken engine may take its time there.
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
  State(std::shared_ptr<Communicator::Impl> impl, std::shared_ptr<Flight> flight)
      : impl_(std::move(impl)), flight_(std::move(flight)) {}
  // `after` runs once, when all parts are over.
  State(std::vector<Work> parts, std::function<void()> after)
      : parts_(std::move(parts)), after_(std::move(after)) {}

  bool test();
  void wait(const Deadline* deadline);  // null: the communicator's time-out

 private:
  void finish();

  std::shared_ptr<Communicator::Impl> impl_;
  std::shared_ptr<Flight> flight_;
  std::vector<Work> parts_;
  std::function<void()> after_;
};

}  // namespace lockstep
