#include "lockstep/comm/engines.h"

#include "lockstep/comm/gloo/gloo_backend.h"
#include "lockstep/comm/mpi/mpi_backend.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/side_channel/checked_backend.h"
#include "lockstep/comm/side_channel/shared_channel.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep {
namespace {

// For engines that do not compare the ranks' calls themselves.
std::unique_ptr<side_channel::SideChannel> make_side_channel(const Topology& place,
                                                             const std::shared_ptr<Store>& store,
                                                             Deadline deadline) {
  if (place.size == 1 || place.local_size != place.size) return nullptr;
  PrefixStore own("check", store);
  return side_channel::make_shared_channel(own, place.rank, place.size, deadline);
}

std::unique_ptr<Backend> checked(std::unique_ptr<Backend> engine,
                                 std::unique_ptr<side_channel::SideChannel> channel,
                                 const Topology& place) {
  if (!channel) return engine;
  return make_checked_backend(std::move(engine), std::move(channel), place.rank,
                              place.local_size <= usable_cpu_count());
}

}  // namespace

std::unique_ptr<Backend> make_engine(const EngineRequest& request, std::shared_ptr<Store> store,
                                     Deadline deadline) {
  const Topology& place = request.topology;
  if (request.backend == "mpi") {
    const bool whole_job = place.size == request.job.size;
    auto channel = make_side_channel(place, store, deadline);
    auto engine = make_mpi_backend(store.get(),
                                   {.rank = place.rank,
                                    .size = place.size,
                                    .local_size = place.local_size,
                                    .world_rank = request.job.rank,
                                    .world_size = request.job.size,
                                    .members = whole_job ? std::vector<int>() : request.members},
                                   deadline);
    return checked(std::move(engine), std::move(channel), place);
  }
  if (!store) {
    throw InvalidArgument("backend " + request.backend +
                          " needs a launcher or an init_method; alone, leave the backend out");
  }
  if (request.backend == "shm")
    return make_shm_backend(*store, place.rank, rounds::default_shape(place.size), deadline);
  if (request.backend == "gloo") {
    const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(request.timeout);
    auto channel = make_side_channel(place, store, deadline);
    auto engine = make_gloo_backend(std::move(store), {.rank = place.rank,
                                                       .size = place.size,
                                                       .one_host = place.local_size == place.size,
                                                       .timeout = timeout});
    return checked(std::move(engine), std::move(channel), place);
  }
  throw InvalidArgument("backend " + request.backend + " joins no processes");
}

}  // namespace lockstep
