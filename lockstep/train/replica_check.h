// Replica check: do all ranks still have the same parameters? A processor that computes wrongly, memory that
// loses a bit, or a rank that has skipped a step does not fail: it only trains something else from there on.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/train/train_loop.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

class Strategy;

// After every `every` steps check_equal_values() (comm/same_on_all_ranks.h) of all parameters, before the
// step's log and checkpoint: what is not equal is not saved. Its Mismatch names the step, the first tensor and
// the ranks in the minority with their hosts, and ends training on all ranks. For TrainLoop; a loop of one's
// own calls check_equal_values().
class ReplicaCheckCallback final : public TrainCallback {
 public:
  // The tensors are looked at where they lie, at each check anew. Throws InvalidArgument for `every` below 1.
  ReplicaCheckCallback(Communicator comm, NamedTensors parameters, int64_t every);
  void on_step(const TrainerState& state, const StepResult& result) override;

 private:
  Communicator comm_;
  NamedTensors parameters_;
  int64_t every_;
};

// Throws InvalidArgument where `every` is not 0 and ranks divide the parameters, or share them, under the
// strategy: zero3, fsdp, and a mesh that divides the model. Does not communicate.
void check_has_replicas(const Strategy& strategy, int64_t every);

// That callback for a strategy's model, after check_has_replicas(); null for 0. Does not communicate.
std::shared_ptr<TrainCallback> replica_check(const Communicator& comm, torch::nn::Module& model,
                                             const Strategy& strategy, int64_t every);

}  // namespace lockstep
