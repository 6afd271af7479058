#include "lockstep/comm/engines.h"

#include "lockstep/comm/gloo/gloo_backend.h"
#include "lockstep/comm/mpi/mpi_backend.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/core/errors.h"

namespace lockstep {

std::unique_ptr<Backend> make_engine(const EngineRequest& request, std::shared_ptr<Store> store,
                                     Deadline deadline) {
  const Topology& place = request.topology;
  if (request.backend == "mpi") {
    const bool whole_job = place.size == request.job.size;
    return make_mpi_backend(store.get(),
                            {.rank = place.rank,
                             .size = place.size,
                             .local_size = place.local_size,
                             .world_rank = request.job.rank,
                             .world_size = request.job.size,
                             .members = whole_job ? std::vector<int>() : request.members},
                            deadline);
  }
  if (!store) {
    throw InvalidArgument("backend " + request.backend +
                          " needs a launcher or an init_method; alone, leave the backend out");
  }
  if (request.backend == "shm")
    return make_shm_backend(*store, place.rank, rounds::default_shape(place.size), deadline);
  if (request.backend == "gloo") {
    const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(request.timeout);
    return make_gloo_backend(std::move(store), {.rank = place.rank,
                                                .size = place.size,
                                                .one_host = place.local_size == place.size,
                                                .timeout = timeout});
  }
  throw InvalidArgument("backend " + request.backend + " joins no processes");
}

}  // namespace lockstep
