// Replica check: compares the parameters of all ranks. A processor that computes wrongly, memory
// that loses a bit and a rank that skips a step raise no error; the rank merely trains something
// else from there on.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/train/train_loop.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0 {

class Strategy;

// Calls check_equal_values() (comm/same_on_all_ranks.h) for all parameters every `every` steps,
// before the step's log and checkpoint, so that unequal parameters are not saved. For TrainLoop;
// other loops call check_equal_values() themselves.
// Throws: Mismatch on all ranks. It names the step, the first tensor, and the ranks in the minority
// with their hosts.
class LOCKSTEP_API ReplicaCheckCallback final : public TrainCallback {
 public:
  // Each check reads the tensors where they are then.
  // Throws: InvalidArgument for `every` below 1.
  ReplicaCheckCallback(Communicator comm, NamedTensors parameters, int64_t every);
  void on_step(const TrainerState& state, const StepResult& result) override;

 private:
  Communicator comm_;
  NamedTensors parameters_;
  int64_t every_;
};

// Does not communicate.
// Throws: InvalidArgument if `every` is not 0 and ranks divide or share the parameters under the
// strategy (zero3, fsdp, and a mesh that divides the model), and where they train apart (diloco).
LOCKSTEP_API void check_has_replicas(const Strategy& strategy, int64_t every);

// Makes the callback for a strategy's model, after check_has_replicas(); null for 0. Does not
// communicate.
LOCKSTEP_API std::shared_ptr<TrainCallback> replica_check(const Communicator& comm,
                                                          torch::nn::Module& model,
                                                          const Strategy& strategy, int64_t every);

}  // namespace lockstep::inline v0
