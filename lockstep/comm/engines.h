// Engines by name: the one place that knows which backends of processes there are. Not a public
// header.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep {

// A group of processes to be joined by an engine.
struct EngineRequest {
  std::string backend;
  Topology topology;         // this rank's place in the group
  Topology job;              // ... in the whole job
  std::vector<int> members;  // the group's ranks by their ranks in the job, in the group's order
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);  // of every wait
  // Chosen for this rank, whose tensors the engine carries then; nullopt: the engine chooses.
  std::optional<at::Device> device = std::nullopt;
  // Told what is done next, where that may take long; may be empty.
  std::function<void(const std::string& step)> say = nullptr;
};

// What carries a communicator's operations.
struct Engines {
  std::unique_ptr<Backend> own;
  std::unique_ptr<Backend> host = nullptr;  // where the memory of `own` is a device's: the host's
};

// "hierarchical", or with what carries its data between hosts: "hierarchical:gloo",
// "hierarchical:mpi".
bool is_hierarchical(const std::string& backend);

// Whether its engine is one of devices: "nccl", "peer". Others carry tensors of devices through
// host memory.
bool is_of_devices(const std::string& backend);

// Makes this rank's engine. `store` is new to this group (a PrefixStore); null for a rank alone.
// Collective over the group. Throws InvalidArgument for a backend that is not known, Timeout,
// StoreError, PeerLost.
std::unique_ptr<Backend> make_engine(const EngineRequest& request, std::shared_ptr<Store> store,
                                     Deadline deadline);

// The same, and the host's engine beside one whose memory is a device's.
Engines make_engines(const EngineRequest& request, std::shared_ptr<Store> store, Deadline deadline);

// What carries tensors of the host among these ranks where nobody says otherwise: local alone, shm
// on one host, and over several hierarchical, or tcp where no two ranks share one. That takes a
// look at the other ranks: collective then, over a `store` that is new to it; "" without one.
std::string choose_host_backend(const std::shared_ptr<Store>& store, const Topology& topology,
                                Deadline deadline);

}  // namespace lockstep
