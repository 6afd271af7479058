#include "lockstep/optim/learning_rate.h"

#include <torch/optim/optimizer.h>

#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::optim {

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  if (!(rate >= 0)) {
    throw InvalidArgument("set_learning_rate: " + std::to_string(rate) +
                          " is no rate; it must be at least 0");
  }
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace lockstep::inline v0::optim
