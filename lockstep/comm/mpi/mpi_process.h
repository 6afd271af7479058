// MPI in this process: initialised once, finalised when the process ends in order. Not a public
// header.
#pragma once

#include <mutex>

#include "lockstep/comm/mpi/mpi_library.h"
#include "lockstep/core/env.h"

namespace lockstep::mpi {

// Whether a launcher that speaks PMIx or PMI started this process, so that MPI_Init finds its
// peers. Pure.
bool started_by_mpi_launcher(const EnvLookup& env);

// The library with MPI initialised. MPI is one to a process, so this is too: the first call loads
// and initialises it, later ones return the same. Throws LaunchError: no Open MPI, or `size` > 1
// processes that no mpirun or srun started; Mismatch: MPI's world has another rank or size.
//
// When the process exits with status 0, MPI_Finalize runs, after what the program registered with
// atexit() later. With any other status it does not: it would wait for ranks that wait for this
// one. mpirun then ends the job and names this rank.
const Library& initialise(int rank, int size);

// This process's calls into MPI, one at a time: it is asked for no more than MPI_THREAD_SERIALIZED,
// and two communicators may belong to two threads.
std::mutex& call_mutex();

// After a failed operation MPI_Finalize could wait for ever: the process ends without it.
void give_up_finalizing();
// Whether MPI can still be called (nobody has finalised it).
bool usable();

}  // namespace lockstep::mpi
