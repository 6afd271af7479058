// from_mpi(): a communicator of processes that belong to an MPI program.
//
// The header that takes an MPI_Comm is lockstep/mpi.h, which includes the program's mpi.h. This one
// needs no MPI to compile; MPI is found in the process at run time.
#pragma once

#include <chrono>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The options of from_mpi().
struct FromMpiOptions {
  // The engine that carries the data. "": LOCKSTEP_BACKEND; without it MPI only introduces the
  // ranks to each other, and Lockstep's own engines carry the data: shm on one host, and over
  // several hosts hierarchical, or tcp where no two ranks share one. "mpi": the program's MPI
  // carries the data too, with its networks; its sums have no fixed order. "hierarchical:mpi": MPI
  // between the hosts, shm inside each. The others are InitOptions::backend's.
  std::string backend = {};
  // The time-out of every wait of the communicator, and of this call.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // As InitOptions::device.
  std::string device = {};
};

// The communicator of all processes of an MPI communicator, in its order. `comm` is its MPI_Fint:
// what MPI_Comm_c2f() gives (MPI_Comm_toint() with the MPI standard's binary interface), and
// Fortran's own number, MPI_VAL of a type(MPI_Comm).
//
// The program owns MPI: Lockstep calls neither MPI_Init nor MPI_Finalize nor MPI_Abort, changes no
// error handler of the program's, and uses `comm` once, to duplicate it (its error handler counts
// there: by default an error of MPI ends the program, before Lockstep sees it). Its messages and
// the program's do not meet. Every failure after that is an exception. Address and secret of rank
// 0's store travel through MPI.
//
// The result is a communicator like init()'s: split, subgroup, shrink and the rest work; it does
// not reform. Further calls, with the same or other MPI communicators, make further ones, which are
// independent. Rank 0 of the MPI communicator serves the store that makes groups.
//
// Threads: Lockstep calls MPI on the calling thread only, and with backends other than mpi and
// hierarchical:mpi in this function only; their communicators may be used by any thread and outlive
// MPI_Finalize. MPI_THREAD_FUNNELED suffices: below MPI_THREAD_SERIALIZED this function, and with
// the two backends every call of the communicator and its destructor, must be on the thread that
// called MPI_Init. Otherwise a call is InvalidArgument before it is made, so that the same call on
// that thread may follow and the group stays in step, and a destructor leaves its communicator to
// MPI_Finalize. The tensors of a device are carried on a thread of Lockstep's, and a device's
// gradients are averaged on one of libtorch's: both need MPI_THREAD_SERIALIZED, without which a
// device is refused (InvalidArgument). With MPI_THREAD_SERIALIZED the program sees to it that none
// of its threads is in MPI meanwhile.
//
// With the two backends the members of a new group call MPI_Comm_create_group, which blocks and has
// no deadline. A member that does not come is a Timeout before it. If one stops inside it, the
// others throw Timeout at the deadline, and all later calls of these backends in the process do;
// below MPI_THREAD_SERIALIZED, where nothing can take the thread out of the call, a line on stderr
// says so at the deadline, and the call goes on waiting.
//
// `mpi_function`: the address of any MPI function, as the program sees it, which finds the library
// (lockstep/mpi.h gives it). Null: the MPI in the program's own scope, or loaded with RTLD_GLOBAL.
//
// Collective: all processes of `comm`. Processes outside do not take part.
// Throws: LaunchError (the process has no MPI, an unknown one, or a second one), InvalidArgument
// (MPI is not initialised or is finalised; MPI_COMM_NULL; an intercommunicator; a thread that must
// not call MPI; an option), StoreError, Timeout (names the ranks that did not arrive), PeerLost.
LOCKSTEP_API Communicator from_mpi_fint(int comm, const FromMpiOptions& options = {},
                                        const void* mpi_function = nullptr);

}  // namespace lockstep::inline v0
