#include "lockstep/comm/mpi/mpi_process.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "lockstep/core/errors.h"

namespace lockstep::mpi {
namespace {

// The one state that MPI itself imposes on a process.
struct Process {
  std::mutex mutex;
  std::mutex calls;
  std::unique_ptr<const Library> library;  // guarded by mutex until set, then constant
  std::atomic<bool> broken{false};
};

// Never destroyed: the exit handler needs it.
Process& process() {
  static auto* const kProcess = new Process;
  return *kProcess;
}

void at_exit(int status, void*) {
  const Library* library = process().library.get();
  int finalized = 0;
  library->call.finalized(&finalized);
  if (status == 0 && finalized == 0 && !process().broken) library->call.finalize();
}

void start(const Library& library, int size) {
  int done = 0;
  library.call.initialized(&done);
  if (done != 0) return;  // by the program or another library, which then finalises it too
  // Alone, MPI_Init would start a daemon of mpirun's for the processes that might come.
  if (size == 1 && !started_by_mpi_launcher(process_env()))
    ::setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
  int provided = 0;
  const int code = library.call.init_thread(nullptr, nullptr, kThreadSerialized, &provided);
  if (code != kSuccess) throw LaunchError("MPI_Init_thread: " + library.error_text(code));
  ::on_exit(at_exit, nullptr);
}

}  // namespace

bool started_by_mpi_launcher(const EnvLookup& env) {
  return env("OMPI_COMM_WORLD_SIZE") || env("PMIX_RANK") || env("PMI_RANK");
}

const Library& initialise(int rank, int size) {
  Process& self = process();
  const std::lock_guard lock(self.mutex);
  if (size > 1 && !started_by_mpi_launcher(process_env())) {
    throw LaunchError(
        "backend mpi finds its peers through MPI's own launcher, which did not start "
        "this process: use mpirun -n " +
        std::to_string(size) + " PROGRAM, lockstep run --backend mpi, or srun --mpi=pmix");
  }
  if (!self.library) self.library = std::make_unique<const Library>();
  const Library& library = *self.library;
  start(library, size);
  if (!usable()) throw LaunchError("backend mpi: MPI_Finalize was called already");
  int mpi_rank = 0;
  int mpi_size = 0;
  library.call.comm_rank(library.handle.world, &mpi_rank);
  library.call.comm_size(library.handle.world, &mpi_size);
  if (mpi_rank != rank || mpi_size != size) {
    throw Mismatch("this is rank " + std::to_string(rank) + " of " + std::to_string(size) +
                   ", but MPI says rank " + std::to_string(mpi_rank) + " of " +
                   std::to_string(mpi_size) + "; start all ranks by one mpirun");
  }
  return library;
}

std::mutex& call_mutex() {
  return process().calls;
}

void give_up_finalizing() {
  process().broken = true;
}

bool usable() {
  const Library* library = process().library.get();
  if (library == nullptr) return false;
  int finalized = 0;
  library->call.finalized(&finalized);
  return finalized == 0;
}

}  // namespace lockstep::mpi
