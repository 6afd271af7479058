// lockstep_init_from_mpi(): a communicator of the processes of an MPI_Comm, for programs in C. This
// header includes the program's own mpi.h: Open MPI's, that of MPICH and its family, or the MPI
// standard's (mpi_abi.h). lockstep_init_from_mpi_fint() has the contract.
#ifndef LOCKSTEP_C_MPI_H
#define LOCKSTEP_C_MPI_H

#include <mpi.h>

#include "lockstep/c/communicator.h"

// Collective: all processes of `mpi_comm`.
static inline lockstep_status lockstep_init_from_mpi(MPI_Comm mpi_comm,
                                                     const lockstep_init_options* options,
                                                     lockstep_comm** comm) {
  // Before MPI_Init the conversion would end the program; lockstep_init_from_mpi_fint() refuses then.
  int initialized = 0;
  int32_t number = 0;
  MPI_Initialized(&initialized);
  if (initialized) {
#ifdef MPI_ABI_VERSION
    number = (int32_t)MPI_Comm_toint(mpi_comm);
#else
    number = (int32_t)MPI_Comm_c2f(mpi_comm);
#endif
  }
  // A function's address as an object's: what dlsym of POSIX gives too.
  union {
    int (*function)(char*, int*);
    const void* address;
  } any;
  any.function = MPI_Get_library_version;
  return lockstep_init_from_mpi_fint(number, options, any.address, comm);
}

#endif  // LOCKSTEP_C_MPI_H
