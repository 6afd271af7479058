#include "lockstep/comm/local/local_backend.h"

#include <cstring>

#include "lockstep/comm/rounds/rounds_backend.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace {

// Threads share all of their memory. Copies, which they never need, let tests with threads go the
// way of processes.
class SameProcess final : public rounds::Reach {
 public:
  std::optional<rounds::Window> find(const std::byte* memory, int64_t) const override {
    return rounds::Window{0, reinterpret_cast<uint64_t>(memory)};
  }
  std::byte* peer(int, rounds::Window window) const override {
    return reinterpret_cast<std::byte*>(window.offset);
  }
  SymmetricMemory allocate(int64_t) override { return {}; }
  bool copies() const override { return true; }
  void read(int, uint64_t address, std::byte* to, int64_t bytes) const override {
    std::memcpy(to, reinterpret_cast<const void*>(address), static_cast<size_t>(bytes));
  }
  void write(int, uint64_t address, const std::byte* from, int64_t bytes) const override {
    std::memcpy(reinterpret_cast<void*>(address), from, static_cast<size_t>(bytes));
  }
};

}  // namespace

std::vector<std::unique_ptr<Backend>> make_local_backends(int size) {
  if (size < 1) throw InvalidArgument("a group needs at least 1 rank, not " + std::to_string(size));
  return make_local_backends(rounds::default_shape(size));
}

std::vector<std::unique_ptr<Backend>> make_local_backends(const rounds::RegionShape& shape,
                                                          const rounds::Tuning& tuning) {
  const std::shared_ptr<void> memory = rounds::fresh_memory(shape);
  rounds::Region region(static_cast<std::byte*>(memory.get()), shape);
  region.initialise();

  Capabilities capabilities = rounds::engine_capabilities();
  capabilities.backend = "local";
  capabilities.authenticated = true;  // nobody else can join: there is no door
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < shape.size; ++rank) {
    backends.push_back(std::make_unique<rounds::RoundsBackend>(capabilities, memory, region, rank,
                                                               std::make_unique<SameProcess>(),
                                                               rounds::IsDead(), tuning));
  }
  return backends;
}

}  // namespace lockstep
