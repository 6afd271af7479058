// average_parameters: ranks train separately and average their parameters now and then, instead of
// their gradients at every step: "local SGD" (Stich, "Local SGD Converges Fast and Communicates
// Little", ICLR 2019).
//
// With plain SGD and a period of one step the result equals averaging gradients, up to rounding;
// with momentum or Adam it does not, since their state is not averaged.
#pragma once

#include <cstdint>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// Replaces every parameter by its average over the ranks, in place; gradients and views of the
// parameters stay.
// Collective: all ranks call it with the same parameters.
// Throws: the communicator's errors; the parameters are then unspecified.
LOCKSTEP_API void average_parameters(const NamedTensors& parameters, Communicator& comm,
                                     Communicator::Site site = Communicator::Site::current());

// The same for a module, or a holder of one.
template <ModuleOrHolder M>
void average_parameters(M& module, Communicator& comm,
                        Communicator::Site site = Communicator::Site::current()) {
  average_parameters(parameters_of(module), comm, site);
}

// Averages at every `period`-th step from step `warmup` on, and at every step before: that keeps
// the ranks together while the learning rate is high. Like torch's PeriodicModelAverager, except
// that torch leaves the steps before `warmup_steps` to DDP.
class LOCKSTEP_API PeriodicAverager {
 public:
  // Throws: InvalidArgument unless period is 1 or more and warmup 0 or more.
  explicit PeriodicAverager(Communicator comm, int64_t period, int64_t warmup = 0);

  // Called after each optimizer step, on all ranks. Returns whether it averaged; see
  // average_parameters().
  template <typename Model>
  bool step(Model& model, Communicator::Site site = Communicator::Site::current()) {
    if (!due()) return false;
    average_parameters(model, comm_, site);
    return true;
  }

 private:
  bool due();  // counts a step; whether to average

  Communicator comm_;
  int64_t period_;
  int64_t warmup_;
  int64_t steps_ = 0;
};

}  // namespace lockstep::inline v0
