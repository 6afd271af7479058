// Communicators of some of MPI's processes. Not a public header.
#pragma once

#include <chrono>
#include <vector>

#include "lockstep/comm/engines/mpi/mpi_library.h"
#include "lockstep/comm/engines/mpi/mpi_world.h"
#include "lockstep/core/deadline.h"

namespace lockstep::inline v0::mpi {

inline constexpr auto kLeastPatience = std::chrono::seconds(2);

// A communicator of `members`, ranks of the job, in their order; errors in it are returned.
//
// MPI_Comm_create_group blocks, and MPI has no other form of it. So the members meet elsewhere
// first, where a missing one is named; what remains is a member that stops or dies in between. From
// the deadline on, but no sooner than kLeastPatience after the call:
// - where MPI takes any thread, the call was made on a thread of its own, which is left in MPI. No
//   call of this process may follow it: they all throw (check_answering()).
// - otherwise only this thread may be in MPI, and nothing can take it out: a line on stderr says
//   so, and the call goes on. The process is the application's, which Lockstep does not end.
// Collective: all members.
// Throws: Timeout, PeerLost.
Comm create_group(const World& job, const std::vector<int>& members, Deadline deadline);

}  // namespace lockstep::inline v0::mpi
