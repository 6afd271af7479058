// ZeroOptimizer's implementation: the averaging of gradients, and the step. Not used directly.
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

namespace lockstep::inline v0::internal {

// Owned by the optimizer.
class ZeroState final : public flat::BackwardWatch {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  static constexpr size_t kInFlight = kZeroInFlight;

  // `grains`: of each parameter, for plan_shards(). Collective.
  ZeroState(Communicator comm, std::vector<ZeroParameter> parameters,
            std::span<const size_t> groups, const ZeroOptions& options,
            std::vector<int64_t> grains);
  ~ZeroState() override;
  void install_hooks();
  std::shared_ptr<void> whole_parameters();
  // Every rank has written its parts of the parameters: returns when every rank has all.
  // Collective.
  void parameters_changed();

  void silence(int by) { silencers_ += by; }
  // Returns once all averages are complete.
  void settle();
  // The averages of this rank's parts, after settle(); empty if no gradient has arrived.
  std::vector<at::Tensor> own_gradients() const;
  optim::StepResult step(const optim::StepOptions& options, const Groups& groups);

  // A communicator of its own, since hooks call at any point between the caller's collectives.
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

  // Subtracts the steps that a device has skipped from the parameters' counts; waits for the device
  // if there may be some.
  void settle_counts();

 private:
  void backward_began() override;
  void gradient_arrived(size_t index, const at::Tensor& passed) override;
  void backward_ended() override;
  void backward_failed() override;
  // A step's gradients are reduced in rounds of all buckets: one round, unless each backward is
  // reduced separately.
  void lend_buffers();
  void start_ready_buckets();
  // On devices: where units know that all ranks are at the same place (GatheredUnits::on_turn()).
  void take_turn(bool ended);
  bool in_order() const { return buckets_.units() != nullptr && buckets_.units()->in_order(); }
  // Orders this thread's later stream work after that of the previous gradient's stream.
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
  bool on_device_;                     // the communicator's memory is a device's
  size_t lent_ = 0;                    // buckets with memory for their gradients, in this round
  size_t started_ = 0;                 // of those, buckets whose reduction has started
  size_t finished_ = 0;                // of those, buckets whose average is in its place
  int rounds_ = 0;                     // completed rounds
  bool held_ = false;                  // gradients of earlier backwards wait in grad()
  bool took_held_ = false;             // some of them are part of this round
  bool settled_ = false;               // all averages are complete
  bool arrived_ = false;               // a parameter had a gradient when they were settled
  bool quiet_backward_ = false;        // the latest one did not communicate
  int silencers_ = 0;                  // living NoSync guards
  std::optional<c10::Stream> stream_;  // of the latest gradient, on a device
  at::Tensor left_out_;  // steps that devices have skipped, of those that parameters count
};

}  // namespace lockstep::inline v0::internal
