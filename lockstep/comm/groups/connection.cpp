#include "lockstep/comm/groups/connection.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/groups/making.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/internal/engines.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/instruction_set.h"
#include "lockstep/device/choose.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/trace/call_board.h"
#include "lockstep/trace/trace_writer.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kBackends[] = {"local", "shm", "tcp", "gloo", "mpi", "nccl", "peer"};

// Ranks on devices have to meet in a second engine, and would wait forever for ranks that have
// none.
void check_same_kind(Store& store, const std::string& backend,
                     const std::optional<at::Device>& device) {
  const bool host = device ? device->is_cpu() : !is_of_devices(backend);
  const std::string mine = host ? "the CPU" : "a device";
  const std::string first = store.compare_set("kind", "", mine);
  if (first != mine)
    throw InvalidArgument("this rank trains on " + mine + ", and another one on " + first +
                          "; give all ranks the same option device or LOCKSTEP_DEVICE (auto "
                          "is the CPU where no device is visible)");
}

// A launcher may pass a variable to one host alone, and engines would wait for each other in vain.
void check_same_backend(Store& store, const std::string& name) {
  const std::string first = store.compare_set("backend", "", name);
  if (first != name)
    throw InvalidArgument("this rank is to connect over " + name + ", and another one over " +
                          first +
                          "; give all ranks the same backend or LOCKSTEP_BACKEND (Open "
                          "MPI's mpirun passes a variable to other hosts with -x)");
}

}  // namespace

void check_backend_name(const std::string& name) {
  if (is_hierarchical(name) || name == "hierarchical:tcp") return;
  if (name.starts_with("hierarchical:")) {
    throw InvalidArgument("backend '" + name +
                          "': between its hosts hierarchical uses tcp, gloo or mpi "
                          "(hierarchical, hierarchical:gloo, hierarchical:mpi)");
  }
  if (std::find(std::begin(kBackends), std::end(kBackends), name) != std::end(kBackends)) return;
  throw InvalidArgument("backend '" + name +
                        "' is not known; there are local, shm, tcp, hierarchical, gloo, mpi, "
                        "nccl and peer");
}

std::string choose_backend(const std::string& requested, const EnvLookup& env,
                           const Topology& topology) {
  std::string name = requested.empty() ? env("LOCKSTEP_BACKEND").value_or("") : requested;
  if (name.empty()) return "";
  if (name == "hierarchical:tcp") name = "hierarchical";
  check_backend_name(name);
  if (name == "local" && topology.size > 1) {
    throw InvalidArgument("backend local joins threads of one process; for " +
                          std::to_string(topology.size) + " processes use shm or tcp");
  }
  if ((name == "shm" || name == "peer") && topology.local_size != topology.size) {
    throw InvalidArgument("backend " + name + " joins the ranks of one host, but only " +
                          std::to_string(topology.local_size) + " of " +
                          std::to_string(topology.size) + " are on this one; use " +
                          (name == "peer" ? "nccl" : "hierarchical"));
  }
  return name;
}

std::optional<at::Device> chosen_device(const std::string& device, const std::string& backend,
                                        const EnvLookup& env, int local_rank) {
  const std::string variable = env("LOCKSTEP_DEVICE").value_or("");
  const std::string& request = device.empty() ? variable : device;
  if (request.empty()) return std::nullopt;
  const std::string source = device.empty() ? "LOCKSTEP_DEVICE" : "option device";
  const at::Device chosen = device::choose_device(request, local_rank, source);
  const std::string name = backend.empty() ? env("LOCKSTEP_BACKEND").value_or("") : backend;
  if (chosen.is_cpu() && is_of_devices(name)) {
    throw InvalidArgument(source + " '" + request + "' means the CPU here, but backend " + name +
                          " carries tensors of CUDA devices; ask for cuda, or for another backend");
  }
  return chosen;
}

void keep_own_trace(CommunicatorOptions& communicator, const Topology& topology,
                    const EnvLookup& env) {
  communicator.board = std::make_shared<trace::CallBoard>(trace::CallBoard::create(1));
  communicator.board_rank = 0;
  if (const auto directory = env("LOCKSTEP_TRACE_DIR")) {
    communicator.on_broken = [board = communicator.board, topology,
                              directory = *directory](const std::string& reason) {
      trace::write_own_trace(directory, *board, topology.local_rank, topology.rank, topology.size,
                             reason);
    };
  }
}

Communicator connect(const std::shared_ptr<Store>& store, const Topology& topology,
                     const Connection& connection, CommunicatorOptions communicator,
                     Deadline deadline, const Joining::AtStep& say) {
  const auto step = [&say](const std::string& what) {
    if (say) say(what);
  };
  const auto join = [&](const std::shared_ptr<Store>& meeting) {
    // Here, where the others learn of it: in the first reduction they would wait.
    (void)instruction_set_limit(process_env());
    std::string name = choose_backend(connection.backend, process_env(), topology);
    if (name.empty()) {
      if (meeting && topology.local_size != topology.size) step("exchanging who shares a host");
      name = choose_host_backend(meeting, topology, deadline);
    }
    if (meeting) {
      check_same_kind(*meeting, name, communicator.device);
      check_same_backend(*meeting, name);
    }
    Engines engines;
    auto origin = std::make_shared<GroupOrigin>();
    origin->members.resize(static_cast<size_t>(topology.size));
    std::iota(origin->members.begin(), origin->members.end(), 0);
    if (name == "local" ||
        ((name == "gloo" || name == "tcp" || is_hierarchical(name)) && !meeting)) {
      const bool on_host = !communicator.device || communicator.device->is_cpu();
      origin->maker = on_host ? make_local_groups() : make_lone_groups(*communicator.device);
      engines = origin->maker->make("all", topology, origin->members, deadline);
    } else {
      EngineRequest request{.backend = name,
                            .topology = topology,
                            .job = topology,
                            .members = origin->members,
                            .timeout = connection.timeout,
                            .device = communicator.device,
                            .world = connection.world,
                            .say = step};
      step("connecting over " + name);
      engines = make_engines(request, meeting, deadline);
      request.say = nullptr;
      // Where MPI only introduced the ranks, nothing of it is kept.
      if (!carried_by_mpi(name)) request.world = nullptr;
      origin->maker = make_process_groups(
          request, store ? std::make_shared<PrefixStore>("groups", store) : nullptr,
          communicator.keep);
    }
    communicator.origin = std::move(origin);
    Communicator comm(std::move(engines.own), topology, std::move(communicator),
                      std::move(engines.host));
    step("waiting until all ranks are connected");
    if (meeting) store_barrier(*meeting, "ready", topology.size, deadline);
    return comm;
  };
  return store ? make_together(store, topology.rank, join) : join(nullptr);
}

}  // namespace lockstep::inline v0
