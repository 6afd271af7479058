// MPI in this process: initialised once, finalised when the process ends in order. Not a public
// header.
#pragma once

#include <mutex>
#include <string>

#include "lockstep/comm/mpi/mpi_library.h"

namespace lockstep::mpi {

// The library with MPI initialised. MPI is one to a process, so this is too: the first call loads
// and initialises it, later ones return the same. Throws LaunchError: no MPI, or `size` > 1
// processes that no mpirun or srun started; Mismatch: MPI's world has another rank or size, as when
// the library does not understand the launcher.
//
// When the process exits with status 0, MPI_Finalize runs, after what the program registered with
// atexit() later. With any other status it does not: it would wait for ranks that wait for this
// one. mpirun then ends the job and names this rank.
const Library& initialise(int rank, int size);

// This process's calls into MPI, one at a time: it is asked for no more than MPI_THREAD_SERIALIZED,
// and two communicators may belong to two threads.
std::mutex& call_mutex();

// "Open MPI v4.1.4 (libmpi.so.40)"; "" until initialise().
std::string library_name();

// After a failed operation MPI_Finalize could wait for ever: the process ends without it.
void give_up_finalizing();
// Whether MPI can still be called (nobody has finalised it).
bool usable();

}  // namespace lockstep::mpi
