// World: the processes of one communicator of MPI, which engines and meetings use. Not a public
// header.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "lockstep/comm/engines/mpi/mpi_library.h"
#include "lockstep/core/deadline.h"

namespace lockstep::inline v0::mpi {

// The last owner frees the communicator, if it is a duplicate, nothing on it is unfinished and its
// thread may call MPI; that tells the peers nothing in Open MPI and MPICH.
class World {
 public:
  // `duplicate`: nothing else uses the communicator. `library` outlives the object.
  World(const Library& library, Comm comm, int rank, int size, bool duplicate);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Library& library() const { return library_; }
  Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // An operation on it was given up, and MPI may still work on it.
  void leave_to_mpi() const { unfinished_ = true; }
  // Backend::refuses_caller(), while MPI answers: the program's MPI allows calls of its main thread alone
  // (MPI_THREAD_SINGLE and MPI_THREAD_FUNNELED) and this is another one, or MPI is finalised.
  const char* refuses_caller() const noexcept;
  // Whether MPI allows calls of any thread, one at a time.
  bool takes_any_thread() const { return any_thread_; }

 private:
  const Library& library_;
  Comm comm_;
  int rank_;
  int size_;
  bool duplicate_;
  bool any_thread_;
  mutable std::atomic<bool> unfinished_ = false;
};

// A duplicate of `comm`, so that its messages match no others; errors in it are returned. A Timeout
// leaves memory to MPI, which may still write to it.
// Collective: all ranks of `comm`.
// Throws: PeerLost, Timeout.
Comm duplicate(const Library& library, Comm comm, Deadline deadline);

// The processes of a communicator of the program's, which has called MPI_Init. The number is its
// MPI_Fint; `function` finds the library (Library::of_program()). The communicator is duplicated,
// the program's own is used for that alone.
// Collective: all ranks of the communicator.
// Throws: LaunchError (the program has no known MPI, or another one than this process has used
// already), InvalidArgument (MPI is not initialised or is finalised, MPI_COMM_NULL, an
// intercommunicator, a thread that MPI does not allow), PeerLost, Timeout.
std::shared_ptr<const World> world_of(int number, const void* function, Deadline deadline);

}  // namespace lockstep::inline v0::mpi
