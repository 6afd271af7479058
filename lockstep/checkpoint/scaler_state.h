// The state of a GradScaler as JSON, for a checkpoint's file "scaler.json".
#pragma once

#include <string>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// With the members of Python's GradScaler.state_dict(): scale, growth_factor, backoff_factor,
// growth_interval, _growth_tracker.
LOCKSTEP_API std::string to_json(const amp::GradScalerState& state);
// Throws CheckpointError that begins with `source` unless all members are there.
LOCKSTEP_API amp::GradScalerState scaler_state_from_json(const std::string& text,
                                                         const std::string& source);

}  // namespace lockstep::inline v0
