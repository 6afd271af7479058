// The memory that this process uses.
#pragma once

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The maximum resident size so far ("VmHWM"), in MiB; 0 where the system does not tell.
LOCKSTEP_API double peak_memory_mib();
// Its current proportional set size (proc(5), smaps_rollup), in bytes: of pages that several
// processes share, each counts a part. 0 where the system does not tell.
LOCKSTEP_API double proportional_memory_bytes();

}  // namespace lockstep::inline v0
