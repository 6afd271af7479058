// Ranks of this host started by MPI's own launcher, Open MPI's or MPICH's.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/mpi_family.h"

namespace lockstep::launch {

struct Mpirun {
  std::string name;  // as it was asked for: Open MPI and Hydra look at it
  std::string file = {};
  MpiFamily family = MpiFamily::kOpenMpi;
};

// LOCKSTEP_MPIRUN, else mpirun on PATH. Throws LaunchError in one line: there is none (with the
// packages), or it is neither Open MPI's nor of MPICH's family.
Mpirun find_mpirun(const EnvLookup& env);
// The one of a family, where several are installed side by side (mpirun.openmpi, mpirun.mpich, as
// Debian calls them); nullopt: none on PATH.
std::optional<Mpirun> find_mpirun_of(MpiFamily family);

struct MpirunJob {
  int nproc = 1;
  std::vector<std::string> command;
  std::map<std::string, std::string> env = {};  // on top of this process's
  bool tag_lines = false;                       // the rank before each line, as that mpirun does it
  std::vector<std::string> flags = {};          // further ones, which that mpirun knows
};

// How to start the job's ranks, by default on this host: as root too, more ranks than processors
// too (they then yield while they wait, where MPI can), no rank bound to a processor, one thread
// each unless OMP_NUM_THREADS says otherwise. Another launcher's variables are taken out of the
// environment. mpirun stays in this process group, so a terminal's Ctrl-C reaches it.
SubprocessOptions mpirun_process(const Mpirun& mpirun, const MpirunJob& job);

}  // namespace lockstep::launch
