// The two families of MPI that Lockstep knows. MPI leaves the binary interface to the
// implementation: Open MPI has one, MPICH and its descendants (Intel MPI, Cray MPICH, MVAPICH)
// share another. Nothing here needs an MPI.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"

namespace lockstep::inline v0::launch {

enum class MpiFamily { kOpenMpi, kMpich };
inline constexpr MpiFamily kMpiFamilies[] = {MpiFamily::kOpenMpi, MpiFamily::kMpich};

const char* to_string(MpiFamily family);  // "Open MPI", "MPICH"
// The packages to install on Debian and Ubuntu: library and mpirun.
const char* mpi_package(MpiFamily family);
// The file names of its library, for dlopen(3), the likeliest first.
std::vector<std::string> mpi_library_files(MpiFamily family);

// How an mpirun tells its processes their ranks.
struct MpiLauncher {
  MpiFamily family;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  bool by_local_rank;     // rank and size alone may be srun's
  const char* unless_in;  // a variable of a launcher that sets the same ones; null: there is none
};
// The mpirun that started this process; null: none, or srun. Pure.
const MpiLauncher* mpi_launcher(const EnvLookup& env);

// Whether a launcher that speaks PMIx or PMI started this process, mpirun or srun, so that MPI_Init
// finds its peers. Pure.
bool started_by_mpi_launcher(const EnvLookup& env);

// The families whose library may understand the launcher, the likeliest first; for an mpirun, its
// own family alone. Pure.
std::vector<MpiFamily> fitting_families(const EnvLookup& env);

// The family that the text of `mpirun --version` or MPI_Get_library_version() names. Pure.
std::optional<MpiFamily> family_of_version(const std::string& text);

}  // namespace lockstep::inline v0::launch
