// ZeroOptimizer's inside: the averaging of gradients, and the step. Not used directly.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/backward_watch.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/parallel/zero/internal/zero_buckets.h"
#include "lockstep/parallel/zero/internal/zero_update.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep::internal {

// Owned by the optimizer.
class ZeroState final : public flat::BackwardWatch {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  static constexpr size_t kInFlight = kZeroInFlight;

  // `grains`: of each parameter, as plan_shards() takes them. Collective.
  ZeroState(Communicator comm, std::vector<ZeroParameter> parameters,
            std::span<const size_t> groups, const ZeroOptions& options,
            std::vector<int64_t> grains);
  ~ZeroState() override;
  void install_hooks();
  std::shared_ptr<void> whole_parameters();
  // Every rank has written its parts of the parameters: returns when all have all. Collective.
  void parameters_changed();

  void silence(int by) { silencers_ += by; }
  // Returns once all averages are there.
  void settle();
  // The averages of this rank's parts, after settle(); none if no gradient has come.
  std::vector<at::Tensor> own_gradients() const;
  optim::StepResult step(const optim::StepOptions& options, const Groups& groups);

  // Its own: hooks call while the caller may be anywhere between other collectives.
  Communicator& comm() { return comm_; }
  // The same ranks in the order of their parts.
  Communicator& parts() { return buckets_.host_copy() ? buckets_.host_copy()->parts() : comm_; }
  ZeroBuckets& buckets() { return buckets_; }
  bool sharded() const { return buckets_.parts() > 1; }
  bool has_masters() const { return options_.master_weights; }
  ZeroMemory memory() const;
  ZeroMemory planned_memory(const Groups& groups, const ZeroAlgorithm& defaults) const;
  ZeroTimes times() const {
    ZeroTimes times = times_;
    times.copied_bytes = buckets_.copied_bytes();
    if (buckets_.units()) times.fetching = buckets_.units()->waiting();
    return times;
  }

  // Takes the steps that a device has left out from the parameters' counts; waits for it if there may be some.
  void settle_counts();

 private:
  void backward_began() override;
  void gradient_arrived(size_t index, const at::Tensor& passed) override;
  void backward_ended() override;
  void backward_failed() override;
  // A step's gradients are reduced in rounds of all buckets: one, unless each backward is reduced by
  // itself.
  void lend_buffers();
  void start_ready_buckets();
  // On devices: where units say that all ranks are at the same place (GatheredUnits::on_turn()).
  void take_turn(bool ended);
  bool in_order() const { return buckets_.units() != nullptr && buckets_.units()->in_order(); }
  // What this thread's stream is given comes after what the one of the gradient before has been given.
  void follow_stream();
  void start_bucket();
  void finish_bucket();
  void finish_round();
  void forget_round();
  bool quiet() const { return silencers_ > 0 || !options_.overlap; }
  void check_used();
  bool agree_on_arrival();
  optim::StepDecision decide(const optim::StepOptions& options, const Groups& groups,
                             optim::StepResult* result);
  bool device_decides(const optim::StepOptions& options, const Groups& groups) const;
  double sum_of_squares_of_all();
  at::Tensor norm_on_device();
  std::string first_not_finite();
  void update(const optim::StepDecision& decision, const Groups& groups);
  void forget();

  Communicator comm_;
  ZeroOptions options_;
  ZeroBuckets buckets_;
  std::vector<HookHandle> unit_hooks_;
  ZeroTimes times_;
  bool on_device_;               // what the communicator moves is a device's
  size_t lent_ = 0;              // buckets that have memory for their gradients, in this round
  size_t started_ = 0;           // and of them, those whose reduction was started
  size_t finished_ = 0;          // and of them, those whose average is in its place
  int rounds_ = 0;               // that are over
  bool held_ = false;            // gradients of earlier backwards wait in grad()
  bool took_held_ = false;       // and some of them are part of this round
  bool settled_ = false;         // all averages are there
  bool arrived_ = false;         // some parameter had a gradient when they were settled
  bool quiet_backward_ = false;  // the latest one did not communicate
  int silencers_ = 0;            // NoSync guards that live
  std::optional<c10::Stream> stream_;  // of the latest gradient, on a device
  at::Tensor left_out_;  // steps that devices have left out, of those that parameters count
};

}  // namespace lockstep::internal
