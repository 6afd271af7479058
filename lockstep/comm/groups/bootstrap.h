// Bootstrap: leads from a process's environment or options to a store that all ranks of its job
// share. Not a public header.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/groups/joining.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/env.h"
#include "lockstep/core/interfaces.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

namespace mpi {
class World;
}

// How the ranks find each other. The decision depends on options and environment alone.
struct Meeting {
  enum class Kind {
    kAlone,     // a world of one
    kAgent,     // the launcher's store
    kTorch,     // rank 0 publishes its own store in the TCPStore at `address`
    kRankZero,  // rank 0 serves the store at `address`
    kFile,      // a FileStore at `path`
    kMpi,       // rank 0 serves the store, and tells where through MPI
  };
  Kind kind = Kind::kAlone;
  HostPort address;
  std::string path;
  bool own_file = false;  // kFile: used by this job alone, so that init() may be called again
  bool torch_agent_store = false;  // kTorch: the launcher serves the TCPStore, rank 0 does not
  std::string key_prefix;          // kTorch, kFile: keeps jobs and restarts apart
  Topology topology;
  bool topology_known = true;  // false: the local ranks must be found out
  // How often this rank was restarted alone; nullopt: ranks are not restarted alone.
  std::optional<int> own_restarts = {};
  // Whether ranks that die are replaced and meet the others again (reformation.h).
  bool replaces = false;
  std::string life = {};  // in that case: differs between all processes that this rank ever has
};
// Pure. Throws InvalidArgument.
Meeting decide_meeting(const InitOptions& options, const EnvLookup& env);

// The endpoint of rank 0's store. The others learn its address from rank 0, not from the user.
struct Offer {
  std::string listen;                  // a numeric address of its host
  std::vector<std::string> addresses;  // by which the others may reach it, the likeliest first
};
// `wanted`: LOCKSTEP_INTERFACE, that is an interface or its address, or "". Pure.
// Throws: InvalidArgument.
Offer make_offer(const std::vector<InterfaceAddress>& all, const std::string& wanted,
                 bool one_host);

// A store of this job, and the objects that must stay alive with it.
struct Rendezvous {
  std::shared_ptr<Store> store;  // null when alone
  std::shared_ptr<void> keep;
};
// The store, which keeps the other objects alive.
std::shared_ptr<Store> kept_store(Rendezvous rendezvous);
// Connects to the store at the first address that answers, and retries with growing pauses.
// Throws: Timeout; SystemError at once where none of the addresses can ever be reached.
std::shared_ptr<Store> reach_store(const std::vector<HostPort>& addresses, const Secret& secret,
                                   Deadline deadline);
// Collective: all ranks of the job.
// Throws: InvalidArgument (no secret), Timeout, StoreError.
Rendezvous open_store(const Meeting& meeting, const InitOptions& options, const EnvLookup& env,
                      Deadline deadline);

// The same for the processes of an MPI communicator: rank 0 serves the store, and the others learn
// through MPI where. `one_host`: they all share one, so that the store is not reached from others.
// Collective: all ranks of the world.
// Throws: InvalidArgument (LOCKSTEP_INTERFACE), Timeout, StoreError, PeerLost.
Rendezvous meet_through_mpi(const mpi::World& world, bool one_host, const EnvLookup& env,
                            Deadline deadline);

// init() that calls `at_step` at each step, for tests.
Communicator init_by_steps(const InitOptions& options, Joining::AtStep at_step);

// Equal on two processes that share a host: identifies the kernel and its host name, which differs
// between containers on one kernel.
std::string host_identity();

// A rank's place among ranks whose host identities are `hosts`, by rank. Pure.
Topology topology_of_hosts(int rank, const std::vector<std::string>& hosts);

// Finds which ranks share a host, from the hosts' boot ids and names.
// Collective: all ranks of the job.
Topology find_topology(Store& store, int rank, int size, Deadline deadline);

// Throws InvalidArgument where an earlier process of this rank, which was restarted alone, has
// already called init(): the other ranks do not wait for it a second time. Does nothing where the
// ranks meet again.
void refuse_to_join_again(Store& store, const Meeting& meeting);

// The last use of a store that rank 0 may serve: rank 0 returns once all others have said that they
// no longer need it.
// Collective: all ranks of the job.
// Throws: Timeout, StoreError.
void leave_store(Store& store, int rank, int size, Deadline deadline);

}  // namespace lockstep::inline v0
