#include "lockstep/train/replica_check.h"

#include <torch/nn/module.h>

#include <string>
#include <utility>

#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {

ReplicaCheckCallback::ReplicaCheckCallback(Communicator comm, NamedTensors parameters,
                                           int64_t every)
    : comm_(std::move(comm)), parameters_(std::move(parameters)), every_(every) {
  if (every < 1)
    throw InvalidArgument("ReplicaCheckCallback: every is " + std::to_string(every) +
                          "; give 1 step or more");
}

void ReplicaCheckCallback::on_step(const TrainerState& state, const StepResult& /*result*/) {
  if (state.step % every_ == 0)
    check_equal_values(comm_, parameters_, "step " + std::to_string(state.step));
}

void check_has_replicas(const Strategy& strategy, int64_t every) {
  const bool divided = strategy.traits().divides_model || divides_parameters(strategy.name());
  if (every != 0 && strategy.traits().trains_apart)
    throw InvalidArgument("check_replicas is " + std::to_string(every) + ", but under strategy " +
                          strategy.name() +
                          " the ranks' parameters differ between two outer steps; leave it at 0");
  if (every == 0 || !divided) return;
  throw InvalidArgument("check_replicas is " + std::to_string(every) + ", but under strategy " +
                        strategy.name() +
                        " the ranks divide or share one copy of the parameters; leave it at 0, or "
                        "take a strategy in which each has its own, such as ddp or zero2");
}

std::shared_ptr<TrainCallback> replica_check(const Communicator& comm, torch::nn::Module& model,
                                             const Strategy& strategy, int64_t every) {
  check_has_replicas(strategy, every);
  if (every == 0) return nullptr;
  return std::make_shared<ReplicaCheckCallback>(comm, parameters_of(model), every);
}

}  // namespace lockstep::inline v0
