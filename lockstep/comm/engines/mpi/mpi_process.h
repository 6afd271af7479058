// MPI in this process: loaded once. Lockstep initialises it for the ranks of mpirun's job, and
// finalises it when the process ends in order; where the program has initialised it, Lockstep does
// neither. Not a public header.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "lockstep/comm/engines/mpi/mpi_library.h"
#include "lockstep/comm/engines/mpi/mpi_world.h"

namespace lockstep::inline v0::mpi {

// The processes that mpirun or srun started, with MPI initialised. A process has one MPI, so the
// library is process-wide: the first call loads and initialises it, later ones find it.
// Throws: LaunchError if there is no MPI, or if `size` > 1 processes were not started by mpirun or
// srun; Mismatch if MPI's world has another rank or size, as when the library does not understand
// the launcher.
//
// When the process exits with status 0, MPI_Finalize runs, after the functions that the program
// registered with atexit() later. With any other status it does not run, since it would wait for
// ranks that wait for this one; mpirun then ends the job and names this rank.
std::shared_ptr<const World> world_of_job(int rank, int size);

// The library that the program is linked with, or has loaded (Library::of_program()). Once a
// process has used an MPI, it is that one.
// Throws: LaunchError, also where the program's MPI is another than this process has used.
const Library& library_of_program(const void* function);

// Serialises this process's calls into MPI: the library is initialised with MPI_THREAD_SERIALIZED
// only, and two communicators may belong to two threads.
std::mutex& call_mutex();

// Says that a call of this process has not come back, and why. No call into MPI may follow: it
// would be a second one at a time.
void stop_answering(const std::string& why);
bool answering() noexcept;
// Throws Timeout with that reason. Call it with call_mutex() held, since the call held it.
void check_answering();

// Throws PeerLost with MPI's text, after the function's name, for a code that is no success.
void check_success(const Library& library, int code, const char* function);

// "Open MPI v4.1.4 (libmpi.so.40)"; "" while no MPI is loaded.
std::string library_name();

// Lets the process end without MPI_Finalize, which could wait for ever after a failed operation.
void give_up_finalizing();
// Whether MPI can still be called: it has not been finalised, and no call has failed to come back.
bool usable(const Library& library);

}  // namespace lockstep::inline v0::mpi
