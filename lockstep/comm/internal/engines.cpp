#include "lockstep/comm/internal/engines.h"

#include <algorithm>
#include <set>

#include "lockstep/comm/engines/gloo/gloo_backend.h"
#include "lockstep/comm/engines/hierarchical/hierarchical_backend.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/comm/engines/local/lone_device.h"
#include "lockstep/comm/engines/mpi/mpi_backend.h"
#include "lockstep/comm/engines/nccl/nccl_backend.h"
#include "lockstep/comm/engines/peer/peer_backend.h"
#include "lockstep/comm/engines/shm/shm_backend.h"
#include "lockstep/comm/engines/side_channel/checked_backend.h"
#include "lockstep/comm/engines/side_channel/shadow_channel.h"
#include "lockstep/comm/engines/side_channel/shared_channel.h"
#include "lockstep/comm/engines/staged/staged_backend.h"
#include "lockstep/comm/engines/tcp/tcp_backend.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/choose.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0 {
namespace {

// An engine that does not compare the ranks' calls itself, behind a side channel that does: memory
// on one host, a second engine across hosts, which `make_shadow` makes. Both makers make one that
// meets in the given store.
template <typename Make, typename MakeShadow>
std::unique_ptr<Backend> make_checked(const EngineRequest& request,
                                      const std::shared_ptr<Store>& store, Deadline deadline,
                                      const Make& make, const MakeShadow& make_shadow) {
  const Topology& place = request.topology;
  if (place.size == 1) return make(store);
  const auto own = std::make_shared<PrefixStore>("check", store);
  std::unique_ptr<side_channel::SideChannel> channel;
  if (request.say) request.say("connecting the side channel of " + request.backend);
  if (place.local_size == place.size) {
    channel = side_channel::make_shared_channel(*own, place.rank, place.size, deadline);
  } else {
    auto shadow = make_shadow(std::make_shared<PrefixStore>("shadow", own));
    channel = side_channel::make_shadow_channel(std::move(shadow), own, place.rank, place.size);
  }
  if (request.say) request.say("connecting over " + request.backend + ", after its side channel");
  return make_checked_backend(make(store), std::move(channel), place.rank);
}
template <typename Make>
std::unique_ptr<Backend> make_checked(const EngineRequest& request,
                                      const std::shared_ptr<Store>& store, Deadline deadline,
                                      const Make& make) {
  return make_checked(request, store, deadline, make, make);
}

MpiOptions mpi_options(const EngineRequest& request, int rank, std::vector<int> members) {
  const auto size = static_cast<int>(members.size());
  // The whole job in its own order needs no group of MPI's.
  if (size == request.job.size && std::is_sorted(members.begin(), members.end())) members.clear();
  return {.rank = rank,
          .size = size,
          .local_size = request.topology.local_size,
          .world = request.world,
          .job_rank = request.job.rank,
          .job_size = request.job.size,
          .members = std::move(members)};
}

GlooOptions gloo_options(const EngineRequest& request, int rank, int size, bool one_host) {
  return {.rank = rank,
          .size = size,
          .one_host = one_host,
          .timeout = std::chrono::ceil<std::chrono::milliseconds>(request.timeout)};
}

std::unique_ptr<Backend> make_hierarchical(const EngineRequest& request,
                                           std::shared_ptr<Store> store, Deadline deadline) {
  const Topology& place = request.topology;
  HierarchicalOptions options{.rank = place.rank, .size = place.size, .node = place.node_rank};
  const size_t colon = request.backend.find(':');
  if (colon != std::string::npos) options.carrier = request.backend.substr(colon + 1);
  options.make_carrier = [&](std::shared_ptr<Store> meeting, const std::vector<int>& members) {
    const auto it = std::find(members.begin(), members.end(), place.rank);
    const auto rank = static_cast<int>(it - members.begin());
    if (options.carrier == "gloo") {
      return make_gloo_backend(
          std::move(meeting), gloo_options(request, rank, static_cast<int>(members.size()), false));
    }
    std::vector<int> in_job;
    for (const int r : members) in_job.push_back(request.members[static_cast<size_t>(r)]);
    return make_mpi_backend(meeting.get(), mpi_options(request, rank, std::move(in_job)), deadline);
  };
  return make_hierarchical_backend(std::move(store), options, deadline);
}

}  // namespace

bool is_hierarchical(const std::string& backend) {
  return backend == "hierarchical" || backend == "hierarchical:gloo" ||
         backend == "hierarchical:mpi";
}

bool carried_by_mpi(const std::string& backend) {
  return backend == "mpi" || backend == "hierarchical:mpi";
}

bool is_of_devices(const std::string& backend) {
  return backend == "nccl" || backend == "peer";
}

std::unique_ptr<Backend> make_engine(const EngineRequest& request, std::shared_ptr<Store> store,
                                     Deadline deadline) {
  const Topology& place = request.topology;
  const auto device = [&request] {
    return request.device ? *request.device
                          : device::choose_device("cuda", request.job.local_rank, "backend peer");
  };
  if (request.backend == "peer" && place.size == 1) return make_lone_device_backend(device());
  if (request.device && !request.device->is_cpu() && !is_of_devices(request.backend)) {
    if (request.world && !request.world->takes_any_thread()) {
      throw InvalidArgument(
          "backend " + request.backend + " carries the tensors of " + request.device->str() +
          " on a thread of Lockstep's, which this program's MPI does not allow; initialise MPI "
          "with MPI_THREAD_SERIALIZED, or take another backend");
    }
    EngineRequest on_host = request;
    on_host.device = std::nullopt;
    return make_staged_backend(make_engine(on_host, std::move(store), deadline), *request.device,
                               place.rank, place.size);
  }
  if (request.backend == "mpi") {
    const MpiOptions options = mpi_options(request, place.rank, request.members);
    return make_checked(request, store, deadline, [&](const std::shared_ptr<Store>& meeting) {
      return make_mpi_backend(meeting.get(), options, deadline);
    });
  }
  if (!store) {
    throw InvalidArgument("backend " + request.backend +
                          " needs a launcher or an init_method; alone, leave the backend out");
  }
  // A group of a job on several hosts may be on a single host.
  const bool part_on_one_host = place.local_size == place.size && place.size < request.job.size;
  if (request.backend == "shm" || (is_hierarchical(request.backend) && part_on_one_host))
    return make_shm_backend(*store, place.rank, rounds::default_shape(place.size), deadline);
  if (request.backend == "peer") {
    return make_peer_backend(
        make_shm_backend(*store, place.rank, rounds::default_shape(place.size), deadline), device(),
        place.rank, place.size, deadline);
  }
  if (request.backend == "tcp") {
    return make_tcp_backend(
        *store,
        {.rank = place.rank, .size = place.size, .one_host = place.local_size == place.size},
        deadline);
  }
  if (is_hierarchical(request.backend))
    return make_hierarchical(request, std::move(store), deadline);
  if (request.backend == "gloo") {
    const GlooOptions options =
        gloo_options(request, place.rank, place.size, place.local_size == place.size);
    return make_checked(request, store, deadline, [&](const std::shared_ptr<Store>& meeting) {
      return make_gloo_backend(meeting, options);
    });
  }
  if (request.backend == "nccl") {
    // The shadow carries words of the host's memory.
    return make_checked(
        request, store, deadline,
        [&](const std::shared_ptr<Store>& meeting) {
          return make_nccl_backend(
              meeting,
              {.rank = place.rank,
               .size = place.size,
               .device = request.device ? request.device->index() : request.job.local_rank},
              deadline);
        },
        [&](const std::shared_ptr<Store>& meeting) {
          return make_tcp_backend(*meeting, {.rank = place.rank, .size = place.size}, deadline);
        });
  }
  throw InvalidArgument("backend " + request.backend + " joins no processes");
}

std::string choose_host_backend(const std::shared_ptr<Store>& store, const Topology& topology,
                                Deadline deadline) {
  if (topology.size == 1) return "local";
  if (topology.local_size == topology.size) return "shm";
  if (!store) return "";
  PrefixStore places("places", store);
  const std::vector<int> nodes = exchange_nodes(
      places, {.rank = topology.rank, .size = topology.size, .node = topology.node_rank}, deadline);
  const std::set<int> hosts(nodes.begin(), nodes.end());
  return hosts.size() < nodes.size() ? "hierarchical" : "tcp";
}

Engines make_engines(const EngineRequest& request, std::shared_ptr<Store> store,
                     Deadline deadline) {
  Engines engines{.own = make_engine(request, store, deadline)};
  if (engines.own->capabilities().device.is_cpu()) return engines;
  const auto meeting = store ? std::make_shared<PrefixStore>("host", store) : nullptr;
  EngineRequest host = request;
  host.device = std::nullopt;
  if (host.say) host.say("connecting what carries tensors of the host beside " + request.backend);
  // Other engines carry the data themselves.
  if (is_of_devices(host.backend))
    host.backend = choose_host_backend(meeting, host.topology, deadline);
  engines.host = host.backend == "local" ? std::move(make_local_backends(1).front())
                                         : make_engine(host, meeting, deadline);
  return engines;
}

}  // namespace lockstep::inline v0
