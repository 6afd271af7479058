// The two families of MPI that Lockstep knows. MPI leaves the binary interface to the
// implementation: Open MPI has one, MPICH and what descends from it (Intel MPI, Cray MPICH,
// MVAPICH) share another. No MPI is needed for what is here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"

namespace lockstep::launch {

enum class MpiFamily { kOpenMpi, kMpich };
inline constexpr MpiFamily kMpiFamilies[] = {MpiFamily::kOpenMpi, MpiFamily::kMpich};

const char* to_string(MpiFamily family);  // "Open MPI", "MPICH"
// What to install on Debian and Ubuntu: library and mpirun.
const char* mpi_package(MpiFamily family);
// What its library is called, for dlopen(3), the likeliest name first.
std::vector<std::string> mpi_library_files(MpiFamily family);

// How an mpirun tells its processes who they are.
struct MpiLauncher {
  MpiFamily family;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  bool by_local_rank;     // rank and size alone may come from srun
  const char* unless_in;  // a variable of the launcher that sets the same ones; null: none does
};
// The mpirun that started this process; null: none, or srun. Pure.
const MpiLauncher* mpi_launcher(const EnvLookup& env);

// Whether a launcher that speaks PMIx or PMI started this process, mpirun or srun, so that MPI_Init
// finds its peers. Pure.
bool started_by_mpi_launcher(const EnvLookup& env);

// Whose library may understand the launcher, the likeliest first: an mpirun's own alone. Pure.
std::vector<MpiFamily> fitting_families(const EnvLookup& env);

// The family that `mpirun --version` or MPI_Get_library_version() speaks of. Pure.
std::optional<MpiFamily> family_of_version(const std::string& text);

}  // namespace lockstep::launch
