#include "lockstep/comm/engines/mpi/mpi_process.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/set_once.h"
#include "lockstep/launch/mpi_family.h"

namespace lockstep::inline v0::mpi {
namespace {

// The state that MPI itself requires a process to have once.
struct Process {
  std::mutex mutex;
  std::mutex calls;
  std::unique_ptr<const Library> library;  // guarded by mutex until it is set, then constant
  std::atomic<bool> broken{false};
  SetOnce<std::string> stuck;  // why a call has not come back
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
  if (done != 0) return;  // the program or another library did it, and will finalise it
  // For a process alone, MPI_Init would start a daemon of mpirun's for processes that might join.
  if (size == 1 && !launch::started_by_mpi_launcher(process_env()))
    ::setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
  int provided = 0;
  const int code =
      library.call.init_thread(nullptr, nullptr, library.thread_serialized(), &provided);
  if (code != kSuccess) throw LaunchError("MPI_Init_thread: " + library.error_text(code));
  ::on_exit(at_exit, nullptr);
}

std::string alone_text(const Library& library, int rank, int size) {
  const launch::MpiLauncher* launcher = launch::mpi_launcher(process_env());
  const std::string started =
      launcher != nullptr ? std::string(to_string(launcher->family)) + "'s mpirun" : "srun";
  return "this is rank " + std::to_string(rank) + " of " + std::to_string(size) + ", but to " +
         library.name() + " it is alone: that library does not understand " + started +
         ", which started it; use the mpirun of the same MPI" +
         (launcher == nullptr ? ", another srun --mpi=," : "") +
         " or name its library by LOCKSTEP_MPI_LIBRARY";
}

}  // namespace

std::shared_ptr<const World> world_of_job(int rank, int size) {
  Process& self = process();
  const std::lock_guard lock(self.mutex);
  if (size > 1 && !launch::started_by_mpi_launcher(process_env())) {
    throw LaunchError(
        "backend mpi finds its peers through MPI's own launcher, which did not start "
        "this process: use mpirun -n " +
        std::to_string(size) +
        " PROGRAM, lockstep run --backend mpi, or srun --mpi=pmix or --mpi=pmi2");
  }
  if (!self.library) self.library = std::make_unique<const Library>(choose_library(process_env()));
  const Library& library = *self.library;
  start(library, size);
  if (!usable(library)) throw LaunchError("backend mpi: MPI_Finalize was called already");
  const Comm comm = library.handle.world;
  int mpi_rank = 0;
  int mpi_size = 0;
  library.call.comm_rank(comm, &mpi_rank);
  library.call.comm_size(comm, &mpi_size);
  if (mpi_size == 1 && size > 1) throw Mismatch(alone_text(library, rank, size));
  if (mpi_rank != rank || mpi_size != size) {
    throw Mismatch("this is rank " + std::to_string(rank) + " of " + std::to_string(size) +
                   ", but MPI says rank " + std::to_string(mpi_rank) + " of " +
                   std::to_string(mpi_size) + "; start all ranks by one mpirun");
  }
  return std::make_shared<const World>(library, comm, rank, size, false);
}

const Library& library_of_program(const void* function) {
  Process& self = process();
  const std::lock_guard lock(self.mutex);
  auto found = std::make_unique<const Library>(Library::of_program(function));
  if (!self.library) self.library = std::move(found);
  if (found && !found->same_as(*self.library)) {
    throw LaunchError("from_mpi: the communicator is of " + found->name() +
                      ", but this process already uses " + self.library->name() +
                      "; two MPIs in one process do not work");
  }
  return *self.library;
}

std::mutex& call_mutex() {
  return process().calls;
}

std::string library_name() {
  Process& self = process();
  const std::lock_guard lock(self.mutex);
  return self.library ? self.library->name() : "";
}

void give_up_finalizing() {
  process().broken = true;
}

void stop_answering(const std::string& why) {
  give_up_finalizing();
  process().stuck.set(why);
}

bool answering() noexcept {
  return process().stuck.get() == nullptr;
}

void check_answering() {
  if (const std::string* why = process().stuck.get()) throw Timeout(*why);
}

void check_success(const Library& library, int code, const char* function) {
  if (code != kSuccess) throw PeerLost(std::string(function) + ": " + library.error_text(code), -1);
}

bool usable(const Library& library) {
  if (!answering()) return false;
  int finalized = 0;
  library.call.finalized(&finalized);
  return finalized == 0;
}

}  // namespace lockstep::inline v0::mpi
