// The strategies zero1 to fsdp. Not a public header: make_strategy() makes them.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {

// `units`: parameters are divided between hosts as well. `copies`: ZeroOptions'.
std::shared_ptr<Strategy> make_zero_strategy(int stage, bool units = false,
                                             std::vector<int> copies = {});

}  // namespace lockstep::inline v0
