// Hooks by which a unit's forward and backward fetch its parameters. Not used directly: see
// zero_optimizer.h.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/hooks/forward_hook.h"
#include "lockstep/parallel/zero/internal/gathered_units.h"

namespace lockstep::inline v0::internal {

// Puts a hook around each unit's forward; the hooks have no effect once `units` is gone. Throws as
// wrap_forward().
std::vector<HookHandle> hook_units(torch::nn::Module& model,
                                   const std::shared_ptr<GatheredUnits>& units);

}  // namespace lockstep::inline v0::internal
