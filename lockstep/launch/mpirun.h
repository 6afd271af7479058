// Starts ranks of this host by MPI's own launcher, Open MPI's or MPICH's.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/mpi_family.h"

namespace lockstep::inline v0::launch {

struct Mpirun {
  std::string name;  // as it was called: Open MPI and Hydra look at it
  std::string file = {};
  MpiFamily family = MpiFamily::kOpenMpi;
};

// LOCKSTEP_MPIRUN, otherwise mpirun on PATH.
// Throws: a one-line LaunchError if there is none (with the packages), or if it belongs to neither
// family.
Mpirun find_mpirun(const EnvLookup& env);
// The mpirun of a family, where several are installed side by side (mpirun.openmpi, mpirun.mpich,
// as Debian calls them); nullopt: none on PATH.
std::optional<Mpirun> find_mpirun_of(MpiFamily family);

struct MpirunJob {
  int nproc = 1;
  std::vector<std::string> command;
  std::map<std::string, std::string> env = {};  // in addition to this process's
  bool tag_lines = false;               // prefixes each line with the rank, in that mpirun's way
  std::vector<std::string> flags = {};  // further flags of that mpirun
  bool no_input = false;  // the ranks read /dev/null; mpirun's stdin is then silent_stdin()
};

// The command that starts the job's ranks, by default on this host: also as root, with more ranks
// than processors (they then yield while they wait, where MPI can), no rank bound to a processor,
// and one thread each unless OMP_NUM_THREADS is set. Another launcher's variables are removed from
// the environment. mpirun stays in this process group, so a terminal's Ctrl-C reaches it.
SubprocessOptions mpirun_process(const Mpirun& mpirun, const MpirunJob& job);

// A stdin for mpirun on which nothing arrives, not even an end. MPICH's mpirun sends what arrives on
// its stdin to the proxy of its ranks, the end of /dev/null included; if the ranks have ended
// before it gets so far, SIGPIPE kills it, and the job's exit code is lost.
// Throws: SystemError.
UniqueFd silent_stdin();

// Runs the job to its end, with this process's streams. It has no input (MpirunJob::no_input) if
// stdin is /dev/null or a pipe at its end. Blocks.
// Throws: LaunchError, SystemError.
ExitStatus run_mpirun(const Mpirun& mpirun, MpirunJob job);

}  // namespace lockstep::inline v0::launch
