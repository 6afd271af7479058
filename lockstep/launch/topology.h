// Which cores, NUMA nodes and sockets the processors of this host belong to.
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/launch/placement.h"

namespace lockstep::inline v0::launch {

// Reads Linux's description of the machine for these processors. A processor that is not described
// there is a core of its own in socket 0.
std::vector<Processor> read_topology(const std::vector<int>& cpus,
                                     const std::filesystem::path& system = "/sys/devices/system");

}  // namespace lockstep::inline v0::launch
