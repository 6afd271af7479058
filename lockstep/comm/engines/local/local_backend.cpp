#include "lockstep/comm/engines/local/local_backend.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "lockstep/comm/engines/rounds/rounds_backend.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0 {
namespace {

// Memory shared by all ranks: the n-th block that each requests is the same one.
class SharedBlocks {
 public:
  explicit SharedBlocks(int ranks) : ranks_(ranks) {}

  std::shared_ptr<void> take(size_t number, int64_t bytes) {
    const MutexLock lock(mutex_);
    Block& block = blocks_[number];
    if (block.memory == nullptr) block.memory = fresh(bytes);
    auto memory = block.memory;
    if (++block.taken == ranks_) blocks_.erase(number);
    return memory;
  }

 private:
  struct Block {
    std::shared_ptr<void> memory;
    int taken = 0;
  };

  static std::shared_ptr<void> fresh(int64_t bytes) {
    constexpr size_t kPage = 4096;
    const size_t size = (static_cast<size_t>(bytes) + kPage - 1) / kPage * kPage;
    void* memory = std::aligned_alloc(kPage, size);
    if (memory == nullptr)
      throw system_error("no " + std::to_string(size) + " bytes of shared memory", ENOMEM);
    std::memset(memory, 0, size);
    return {memory, std::free};
  }

  const int ranks_;
  Mutex mutex_;
  std::map<size_t, Block> blocks_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Threads share all of their memory and never need copies; with copies, tests with threads exercise
// the code path of processes.
class SameProcess final : public rounds::PeerMemory {
 public:
  explicit SameProcess(std::shared_ptr<SharedBlocks> shared) : shared_(std::move(shared)) {}

  std::optional<rounds::Window> find(const std::byte* memory, int64_t) const override {
    return rounds::Window{0, reinterpret_cast<uint64_t>(memory)};
  }
  std::byte* peer(int, rounds::Window window) const override {
    return reinterpret_cast<std::byte*>(window.offset);
  }
  SymmetricMemory allocate(int64_t) override { return {}; }
  SymmetricMemory allocate_shared(int64_t bytes) override {
    auto memory = shared_->take(taken_++, bytes);
    auto* data = static_cast<std::byte*>(memory.get());
    return {data, std::move(memory), [] {}};
  }
  bool copies() const override { return true; }
  void read(int, uint64_t address, std::byte* to, int64_t bytes) const override {
    std::memcpy(to, reinterpret_cast<const void*>(address), static_cast<size_t>(bytes));
  }
  void write(int, uint64_t address, const std::byte* from, int64_t bytes) const override {
    std::memcpy(reinterpret_cast<void*>(address), from, static_cast<size_t>(bytes));
  }

 private:
  std::shared_ptr<SharedBlocks> shared_;
  size_t taken_ = 0;  // the number this rank has taken
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
  capabilities.authenticated = true;  // other processes have no way to join
  capabilities.shared_memory = true;
  const auto shared = std::make_shared<SharedBlocks>(shape.size);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < shape.size; ++rank) {
    backends.push_back(std::make_unique<rounds::RoundsBackend>(
        capabilities, memory, region, rank, std::make_unique<SameProcess>(shared), rounds::IsDead(),
        tuning));
  }
  return backends;
}

}  // namespace lockstep::inline v0
