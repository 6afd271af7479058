// average_parameters: ranks train for themselves and average their parameters now and then, instead
// of their gradients at every step: "local SGD" (Stich, "Local SGD Converges Fast and Communicates
// Little", ICLR 2019).
//
// With plain SGD and a period of one step this is what averaging gradients gives, to rounding; with
// momentum or Adam it is not, since their state is not averaged.
#pragma once

#include <cstdint>

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep {

// Replaces every parameter by its average over the ranks, in place; gradients and whatever views
// the parameters have stay. Collective, the same parameters on all ranks; throws what the
// communicator throws, the parameters are then unspecified.
void average_parameters(const NamedTensors& parameters, Communicator& comm,
                        Communicator::Site site = Communicator::Site::current());

// The same for a module, or a holder of one.
template <ModuleOrHolder M>
void average_parameters(M& module, Communicator& comm,
                        Communicator::Site site = Communicator::Site::current()) {
  average_parameters(parameters_of(module), comm, site);
}

// Averages at every `period`-th step from step `warmup` on; before, at every step: that keeps the
// ranks together while the learning rate is high. As torch's PeriodicModelAverager, but that one
// leaves the steps before `warmup_steps` to DDP.
class PeriodicAverager {
 public:
  // Throws InvalidArgument unless period is 1 or more and warmup 0 or more.
  explicit PeriodicAverager(Communicator comm, int64_t period, int64_t warmup = 0);

  // After each optimizer step, on all ranks. Returns whether it averaged; see average_parameters().
  template <typename Model>
  bool step(Model& model, Communicator::Site site = Communicator::Site::current()) {
    if (!due()) return false;
    average_parameters(model, comm_, site);
    return true;
  }

 private:
  bool due();  // counts a step

  Communicator comm_;
  int64_t period_;
  int64_t warmup_;
  int64_t steps_ = 0;
};

}  // namespace lockstep
