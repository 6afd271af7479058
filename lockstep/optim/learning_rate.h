// The learning rate of any torch optimizer, for schedules (schedule.h) to set.
#pragma once

#include "lockstep/core/export.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace lockstep::inline v0::optim {

// Sets it for every parameter group.
// Throws: InvalidArgument for a negative or NaN rate; then nothing has changed.
LOCKSTEP_API void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace lockstep::inline v0::optim
