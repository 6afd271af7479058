// Engines by name. Only this file knows the list of backends whose ranks are processes. Not a
// public header.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

namespace mpi {
class World;
}

// The group of processes that an engine joins.
struct EngineRequest {
  std::string backend;
  Topology topology;         // this rank's place in the group
  Topology job;              // ... in the whole job
  std::vector<int> members;  // the group's ranks by their ranks in the job, in the group's order
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);  // of every wait
  // The device chosen for this rank, whose tensors the engine then carries; nullopt: the engine
  // chooses.
  std::optional<at::Device> device = std::nullopt;
  // The processes among which MPI carries data; null: those that mpirun or srun started.
  std::shared_ptr<const mpi::World> world = nullptr;
  // Told the next step where it may take long; may be empty.
  std::function<void(const std::string& step)> say = nullptr;
};

// The engines that carry a communicator's operations.
struct Engines {
  std::unique_ptr<Backend> own;
  // The host's engine, where the memory of `own` is a device's.
  std::unique_ptr<Backend> host = nullptr;
};

// Whether the name is "hierarchical", alone or with the engine that carries its data between hosts:
// "hierarchical:gloo", "hierarchical:mpi".
bool is_hierarchical(const std::string& backend);

// Whether the backend's engine works on devices: "nccl", "peer". Others carry tensors of devices
// through host memory.
bool is_of_devices(const std::string& backend);

// Makes this rank's engine. `store` is new to this group (a PrefixStore); null for a rank alone.
// Collective: all ranks of the group.
// Throws: InvalidArgument for an unknown backend, Timeout, StoreError, PeerLost.
std::unique_ptr<Backend> make_engine(const EngineRequest& request, std::shared_ptr<Store> store,
                                     Deadline deadline);

// The same, with the host's engine beside one whose memory is a device's.
Engines make_engines(const EngineRequest& request, std::shared_ptr<Store> store, Deadline deadline);

// The default engine for host tensors among these ranks: local for a rank alone, shm on one host,
// and over several hosts hierarchical, or tcp where no two ranks share one. It compares the ranks'
// hosts over a `store` that is new to it, so it is collective then; without a store it returns "".
std::string choose_host_backend(const std::shared_ptr<Store>& store, const Topology& topology,
                                Deadline deadline);

}  // namespace lockstep::inline v0
