// From the flags of other launchers to those of torchrun and Lockstep: how many ranks are meant, and
// where they go. Pure.
#pragma once

#include "lockstep/cli/run/command.h"
#include "lockstep/cli/run/flags.h"
#include "lockstep/cli/run/mapping.h"

namespace lockstep::inline v0::cli {

struct SettledFlags {
  RunFlags flags;  // nproc, nproc_given and nnodes say what the other launchers' flags meant
  Mapping mapping;
};

// Throws: UsageError that names the flags where they contradict each other, or mean what is not
// supported.
SettledFlags settle(const RunFlags& flags, const MachineFacts& machine);

}  // namespace lockstep::inline v0::cli
