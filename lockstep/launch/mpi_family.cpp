#include "lockstep/launch/mpi_family.h"

#include <algorithm>

namespace lockstep::inline v0::launch {
namespace {

constexpr MpiLauncher kLaunchers[] = {
    {MpiFamily::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", false, nullptr},
    // mpirun_rsh of MVAPICH2.
    {MpiFamily::kMpich, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE", false, nullptr},
    // Hydra is the mpirun of MPICH and Intel MPI.
    {MpiFamily::kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true,
     nullptr},
    // PALS is Cray's mpiexec. If srun uses Cray's PMI, Slurm's variables say more.
    {MpiFamily::kMpich, "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", true,
     "SLURM_STEP_ID"},
};

}  // namespace

const char* to_string(MpiFamily family) {
  return family == MpiFamily::kOpenMpi ? "Open MPI" : "MPICH";
}

const char* mpi_package(MpiFamily family) {
  return family == MpiFamily::kOpenMpi ? "openmpi-bin" : "mpich";
}

std::vector<std::string> mpi_library_files(MpiFamily family) {
  if (family == MpiFamily::kOpenMpi) return {"libmpi.so.40"};
  return {"libmpi.so.12", "libmpich.so.12"};  // the second one is Debian's name
}

const MpiLauncher* mpi_launcher(const EnvLookup& env) {
  const auto* it =
      std::find_if(std::begin(kLaunchers), std::end(kLaunchers), [&](const MpiLauncher& launcher) {
        const bool ranked = env(launcher.rank) || env(launcher.size);
        return ranked && (!launcher.by_local_rank || env(launcher.local_rank)) &&
               (launcher.unless_in == nullptr || !env(launcher.unless_in));
      });
  return it == std::end(kLaunchers) ? nullptr : it;
}

bool started_by_mpi_launcher(const EnvLookup& env) {
  return mpi_launcher(env) != nullptr || env("PMIX_RANK") || env("PMI_RANK");
}

std::vector<MpiFamily> fitting_families(const EnvLookup& env) {
  if (const MpiLauncher* launcher = mpi_launcher(env)) return {launcher->family};
  // srun supports PMIx, which Open MPI prefers, or PMI, which MPICH uses; either library may
  // support the other, too.
  if (env("PMI_RANK") && !env("PMIX_RANK")) return {MpiFamily::kMpich, MpiFamily::kOpenMpi};
  return {MpiFamily::kOpenMpi, MpiFamily::kMpich};
}

std::optional<MpiFamily> family_of_version(const std::string& text) {
  const auto has = [&](const char* word) { return text.find(word) != std::string::npos; };
  if (has("Open MPI") || has("OpenRTE")) return MpiFamily::kOpenMpi;
  if (has("MPICH") || has("HYDRA") || has("MVAPICH") || has("Intel(R) MPI"))
    return MpiFamily::kMpich;
  return std::nullopt;
}

}  // namespace lockstep::inline v0::launch
