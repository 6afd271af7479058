// Memory that this process holds.
#pragma once

namespace lockstep {

// The most that has been resident so far ("VmHWM"), MiB; 0 where the system does not say.
double peak_memory_mib();

}  // namespace lockstep
