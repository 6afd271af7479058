// from_mpi(MPI_Comm): a communicator of processes that belong to an MPI program.
//
//   MPI_Init(&argc, &argv);
//   {
//     lockstep::Communicator comm = lockstep::from_mpi(MPI_COMM_WORLD);
//     lockstep::broadcast_parameters(model, comm);
//     ...
//     lockstep::average_gradients(model, comm);
//   }
//   MPI_Finalize();
//
// This header includes the program's own mpi.h: Open MPI's, that of MPICH and its family, or the
// standard's (mpi_abi.h, MPI 5.0). lockstep/comm/from_mpi.h has the contract, and takes the number
// of a communicator in Fortran.
#pragma once

#include <mpi.h>

#include "lockstep/comm/from_mpi.h"

namespace lockstep::inline v0 {

// Collective: all processes of `comm`.
inline Communicator from_mpi(MPI_Comm comm, const FromMpiOptions& options = {}) {
  // Before MPI_Init the conversion would end the program; from_mpi_fint() refuses then.
  int initialized = 0;
  int number = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) {
#ifdef MPI_ABI_VERSION
    number = MPI_Comm_toint(comm);
#else
    number = static_cast<int>(MPI_Comm_c2f(comm));
#endif
  }
  return from_mpi_fint(number, options, reinterpret_cast<const void*>(&MPI_Get_library_version));
}

}  // namespace lockstep::inline v0
