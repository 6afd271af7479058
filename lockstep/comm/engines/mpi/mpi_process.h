// MPI in this process: initialised once, finalised when the process ends in order. Not a public
// header.
#pragma once

#include <mutex>
#include <string>

#include "lockstep/comm/engines/mpi/mpi_library.h"

namespace lockstep::inline v0::mpi {

// The library with MPI initialised. A process has one MPI, so this object is process-wide: the
// first call loads and initialises it, later ones return the same.
// Throws: LaunchError if there is no MPI, or if `size` > 1 processes were not started by mpirun or
// srun; Mismatch if MPI's world has another rank or size, as when the library does not understand
// the launcher.
//
// When the process exits with status 0, MPI_Finalize runs, after the functions that the program
// registered with atexit() later. With any other status it does not run, since it would wait for
// ranks that wait for this one; mpirun then ends the job and names this rank.
const Library& initialise(int rank, int size);

// Serialises this process's calls into MPI: the library is initialised with MPI_THREAD_SERIALIZED
// only, and two communicators may belong to two threads.
std::mutex& call_mutex();

// "Open MPI v4.1.4 (libmpi.so.40)"; "" until initialise().
std::string library_name();

// Lets the process end without MPI_Finalize, which could wait for ever after a failed operation.
void give_up_finalizing();
// Whether MPI can still be called, that is, it has not been finalised.
bool usable();

}  // namespace lockstep::inline v0::mpi
