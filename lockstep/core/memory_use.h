// Memory that this process holds.
#pragma once

namespace lockstep {

// The most that has been resident so far ("VmHWM"), MiB; 0 where the system does not say.
double peak_memory_mib();
// Its proportional set size now (proc(5), smaps_rollup), bytes: pages that several processes share count a part in each.
// 0 where the system does not say.
double proportional_memory_bytes();

}  // namespace lockstep
