#include "lockstep/comm/engines/shm/shm_backend.h"

#include <unistd.h>

#include "lockstep/comm/engines/rounds/rounds_backend.h"
#include "lockstep/comm/engines/shm/arena.h"
#include "lockstep/comm/engines/shm/process_peer_memory.h"
#include "lockstep/comm/engines/shm/segment.h"

namespace lockstep::inline v0 {
namespace {

std::shared_ptr<shm::Arena> open_arena(UniqueFd memory, int rank, int size) {
  if (::lseek(memory.get(), 0, SEEK_END) <= 0) return nullptr;
  return std::make_shared<shm::Arena>(std::move(memory), rank, size);
}

}  // namespace

std::unique_ptr<Backend> make_shm_backend(Store& store, int rank, const rounds::RegionShape& shape,
                                          Deadline deadline, const rounds::Tuning& tuning) {
  rounds::RegionShape agreed = shape;
  const auto initialise = [](std::byte* memory, void* argument) {
    rounds::Region(memory, *static_cast<const rounds::RegionShape*>(argument)).initialise();
  };
  auto segment = std::make_shared<shm::Segment>(
      store, rank, shape.size, rounds::Region::bytes(shape), initialise, &agreed, deadline);
  rounds::Region region(segment->memory(), shape);
  region.verify();
  const auto hung_up = [lines = segment.get()](int r) { return lines->hung_up(r); };
  const auto arena = open_arena(segment->take_arena(), rank, shape.size);
  auto peer_memory = std::make_unique<shm::ProcessPeerMemory>(region, rank, arena, segment->pids(),
                                                              hung_up, deadline);

  Capabilities capabilities = rounds::engine_capabilities();
  capabilities.backend = "shm";
  capabilities.authenticated = true;
  capabilities.processes = true;
  capabilities.shared_memory = arena != nullptr;
  return std::make_unique<rounds::RoundsBackend>(capabilities, std::move(segment), region, rank,
                                                 std::move(peer_memory), hung_up, tuning);
}

}  // namespace lockstep::inline v0
