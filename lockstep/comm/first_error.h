// For work that each rank does by itself, and that all must have done before they go on: a rank
// that failed tells the others, so that none waits for it.
#pragma once

#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The error of the first rank that has one, "rank 2: no such file", equal on all ranks; "" where
// none has. `own`: this rank's; "": none.
// Collective: all ranks call it.
LOCKSTEP_API std::string first_error(Communicator& comm, const std::string& own,
                                     Communicator::Site site = Communicator::Site::current());

}  // namespace lockstep::inline v0
