// Ranks of this host started by Open MPI's mpirun.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::launch {

// How to start `command` on `nproc` ranks of this host: as root too, more ranks than processors too
// (they then yield while they wait), no rank bound to a processor, one thread each unless
// OMP_NUM_THREADS says otherwise. `env` goes on top of this process's environment, from which
// another launcher's variables are taken out. mpirun stays in this process group, so a terminal's
// Ctrl-C reaches it. Throws LaunchError that names the package when there is no mpirun.
SubprocessOptions mpirun_process(int nproc, const std::vector<std::string>& command,
                                 const std::map<std::string, std::string>& env = {});

}  // namespace lockstep::launch
