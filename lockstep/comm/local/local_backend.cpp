#include "lockstep/comm/local/local_backend.h"

#include <new>

#include "lockstep/comm/rounds/rounds_backend.h"
#include "lockstep/core/errors.h"

namespace lockstep {

std::vector<std::unique_ptr<Backend>> make_local_backends(int size) {
  if (size < 1) throw InvalidArgument("a group needs at least 1 rank, not " + std::to_string(size));
  return make_local_backends(rounds::default_shape(size));
}

std::vector<std::unique_ptr<Backend>> make_local_backends(const rounds::RegionShape& shape) {
  constexpr std::align_val_t kAlignment{rounds::kLine};
  const size_t bytes = rounds::Region::bytes(shape);
  std::shared_ptr<void> memory(::operator new(bytes, kAlignment),
                               [](void* p) { ::operator delete(p, kAlignment); });
  rounds::Region region(static_cast<std::byte*>(memory.get()), shape);
  region.initialise();

  Capabilities capabilities = rounds::engine_capabilities();
  capabilities.backend = "local";
  capabilities.authenticated = true;  // nobody else can join: there is no door
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < shape.size; ++rank) {
    backends.push_back(std::make_unique<rounds::RoundsBackend>(capabilities, memory, region, rank,
                                                               rounds::IsDead()));
  }
  return backends;
}

}  // namespace lockstep
