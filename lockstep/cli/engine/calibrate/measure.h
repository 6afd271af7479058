// Measures, for `lockstep plan --calibrate`, the machine and the parts of a training step on it.
#pragma once

#include <vector>

#include "lockstep/bench/machine.h"
#include "lockstep/cli/engine/calibrate/step_parts.h"

namespace lockstep::inline v0::engine {

// Collective: all ranks of a host call it, each a process that has no communicator. libtorch has
// one thread afterwards. Shows its progress on rank 0's stderr, whose figures are the ones to use.
// Throws: what bench::measure_machine() and measure_step_parts() throw.
bench::MachineFigures measure_this_host(std::vector<MeasuredModel> models);

}  // namespace lockstep::inline v0::engine
