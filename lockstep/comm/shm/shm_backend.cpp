#include "lockstep/comm/shm/shm_backend.h"

#include <unistd.h>

#include "lockstep/comm/rounds/rounds_backend.h"
#include "lockstep/comm/shm/segment.h"

namespace lockstep {

std::unique_ptr<Backend> make_shm_backend(Store& store, int rank, const rounds::RegionShape& shape,
                                          Deadline deadline) {
  rounds::RegionShape agreed = shape;
  const auto initialise = [](std::byte* memory, void* argument) {
    rounds::Region(memory, *static_cast<const rounds::RegionShape*>(argument)).initialise();
  };
  auto segment = std::make_shared<shm::Segment>(
      store, rank, shape.size, rounds::Region::bytes(shape), initialise, &agreed, deadline);
  rounds::Region region(segment->memory(), shape);
  region.verify();
  region.rank(rank).pid.store(static_cast<int32_t>(::getpid()), std::memory_order_relaxed);

  Capabilities capabilities = rounds::engine_capabilities();
  capabilities.backend = "shm";
  capabilities.authenticated = true;
  capabilities.processes = true;
  shm::Segment* lines = segment.get();
  return std::make_unique<rounds::RoundsBackend>(capabilities, std::move(segment), region, rank,
                                                 [lines](int r) { return lines->hung_up(r); });
}

}  // namespace lockstep
