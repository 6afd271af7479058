#include "lockstep/comm/engines/shm/shm_backend.h"

#include <unistd.h>

#include "lockstep/comm/engines/rounds/rounds_backend.h"
#include "lockstep/comm/engines/shm/arena.h"
#include "lockstep/comm/engines/shm/process_peer_memory.h"
#include "lockstep/comm/engines/shm/segment.h"
#include "lockstep/core/cpus.h"

namespace lockstep::inline v0 {
namespace {

std::shared_ptr<shm::Arena> open_arena(UniqueFd memory, int rank, int size) {
  if (::lseek(memory.get(), 0, SEEK_END) <= 0) return nullptr;
  return std::make_shared<shm::Arena>(std::move(memory), rank, size);
}

bool is_of_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

// Measured on an Intel Xeon (docs/communication.md): there a large all_reduce is faster by copies
// than through slots, later where a group has more ranks than the host has processors. On AMD's
// processors, where slots are twice as fast as Open MPI's copies, it was not measured.
rounds::Tuning usual_tuning(int size) {
  constexpr int64_t kOfARank = 80 * 1024, kOnSharedProcessors = 4 * 1024 * 1024;
  rounds::Tuning tuning;
  if (is_of_intel())
    tuning.all_reduce_copies_from =
        size <= host_cpu_count() ? size * kOfARank : kOnSharedProcessors;
  return tuning;
}

}  // namespace

std::unique_ptr<Backend> make_shm_backend(Store& store, int rank, const rounds::RegionShape& shape,
                                          Deadline deadline,
                                          const std::optional<rounds::Tuning>& tuning) {
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
                                                 std::move(peer_memory), hung_up,
                                                 tuning.value_or(usual_tuning(shape.size)));
}

}  // namespace lockstep::inline v0
