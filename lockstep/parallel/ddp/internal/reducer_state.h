// The Reducer's implementation. Not used directly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/stopwatch.h"
#include "lockstep/flat/backward_watch.h"
#include "lockstep/parallel/ddp/internal/gradient_buckets.h"
#include "lockstep/parallel/ddp/internal/join_protocol.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep::inline v0::internal {

// Owned by the Reducer.
class ReducerState final : public flat::BackwardWatch {
 public:
  ReducerState(NamedTensors parameters, Communicator comm, ReducerOptions options);
  void install_hooks();

  void count_forward();
  int64_t forwards() const { return forwards_; }
  int64_t batch() const { return batch_; }
  void follow(std::function<int64_t()> batches) { batches_ = std::move(batches); }
  void accumulate(int64_t steps);
  bool communicates() const { return silencers_ == 0 && quiet_backwards_ + 1 >= accumulate_; }
  void silence(int by) { silencers_ += by; }
  ReducerTimes times() const;
  size_t bucket_count() const { return buckets_.buckets().size(); }

  void set_join_protocol(std::shared_ptr<JoinProtocol> join_protocol) {
    join_protocol_ = std::move(join_protocol);
  }
  bool shadow(const JoinState& join_state);

 private:
  void backward_began() override;
  void gradient_arrived(size_t index, const at::Tensor& passed) override;
  void backward_ended() override;  // reducer_finish.cpp
  void backward_failed() override;
  void check_arrival(const Gradient& gradient) const;
  void start_ready_buckets();
  void start_bucket();
  void announce(Step step, int64_t detail = 0);

  // reducer_finish.cpp
  void finish_quietly();
  int ask_for_layout();
  void make_buckets(int source);
  void take_unused_along();
  void complete();
  void settle_dense();
  void settle_sparse();
  void settle_unused();
  void check_static() const;
  bool used_somewhere(size_t index) const;
  void begin_shadow();
  void reset();

  std::string note_of(const std::string& what) const;

  Communicator comm_;
  ReducerOptions options_;
  uint64_t id_;  // number of this reducer among the communicator's: equal on all ranks
  GradientBuckets buckets_;
  std::vector<size_t> order_;  // of arrival, in the watched backward
  at::Tensor used_;            // one bit per parameter
  bool knows_used_ = false;    // the bits of a static graph are known
  size_t started_ = 0;         // buckets whose reduction has started
  int64_t forwards_ = 0;       // counted forwards
  int64_t batch_ = 0;          // result of batches_ at the last of them
  std::function<int64_t()> batches_;
  ReducerTimes times_;
  std::shared_ptr<JoinProtocol> join_protocol_;
  bool shadowing_ = false;       // this rank adds nothing to the current reduction
  bool quiet_ = false;           // this backward does not communicate
  int silencers_ = 0;            // living NoSync guards
  int64_t accumulate_ = 1;       // the last of this many backwards communicates
  int64_t quiet_backwards_ = 0;  // since the last that communicated, except under NoSync
};

}  // namespace lockstep::inline v0::internal
