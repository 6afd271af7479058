// Connection: how ranks that have met in a store become a communicator. Not a public header.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/groups/joining.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/env.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

namespace mpi {
class World;
}

// How the ranks of a communicator get their engines.
struct Connection {
  std::string backend;  // as InitOptions::backend
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // The processes for backend mpi; null: those that mpirun or srun started.
  std::shared_ptr<const mpi::World> world = nullptr;
};

// Makes the communicator of the ranks that meet in `store`. The store must be new to them (a
// PrefixStore) and may be null for a world of one. It is kept while the communicator or a group of
// it lives.
// Collective: all of those ranks.
// Throws: InvalidArgument, StoreError, Timeout, PeerLost.
Communicator connect(const std::shared_ptr<Store>& store, const Topology& topology,
                     const Connection& connection, CommunicatorOptions communicator,
                     Deadline deadline, const Joining::AtStep& say = nullptr);

// The name of the engine: the request, then LOCKSTEP_BACKEND; "": choose_host_backend() decides.
// Throws: InvalidArgument for an unknown one, and one that does not fit the topology.
std::string choose_backend(const std::string& requested, const EnvLookup& env,
                           const Topology& topology);

// The requested device comes before LOCKSTEP_DEVICE; nullopt if neither is set. `backend` is the
// request for it.
// Throws: InvalidArgument.
std::optional<at::Device> chosen_device(const std::string& device, const std::string& backend,
                                        const EnvLookup& env, int local_rank);

// For a rank without an agent: a call board of its own, and a trace in LOCKSTEP_TRACE_DIR when an
// error breaks the communicator.
void keep_own_trace(CommunicatorOptions& communicator, const Topology& topology,
                    const EnvLookup& env);

}  // namespace lockstep::inline v0
