// The allocators: of device memory, and of host memory that is pinned.
#include <c10/core/CachingDeviceAllocator.h>

#include <utility>

#include "lockstep/testing/fake_cuda/internal/capture.h"
#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"
#include "lockstep/testing/fake_cuda/internal/pinned.h"

namespace lockstep::inline v0::testing::fake {
namespace {

const std::string kNobody = "an allocation";

std::string& maker_now() {
  thread_local std::string name = kNobody;
  return name;
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (const CapturePtr graph = block->graph.lock()) return graph->drop(block->data);
  Machine& m = machine();
  // Given out again after what its own stream and those that it was recorded on have been given so far, and with that
  // after what these have waited for.
  VectorClock before = m.timeline.now(block->home, *Host::current());
  for (const int stream : block->recorded) before.join(m.timeline.now(stream, *Host::current()));
  m.memory.free(block, before);
}

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current_device();
    const c10::Device where(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, where};
    Machine& m = machine();
    const StreamSlot home = current_slot(device);
    const PlacePtr place = place_of(MadeBy::now(), home);
    for (FreedInUse& freed : m.memory.reused(home, m.timeline.now(home, *Host::current())))
      m.races.add(RaceKind::kFreedInUse, freed.use.place, place, freed.made);
    Block* block = m.memory.allocate(device, bytes, home, place);
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "CUDA out of memory. FakeCuda's ", where,
                     " has ", m.memory.bytes_each(), " bytes, of which ", m.memory.used(device),
                     " are in use; tried to allocate ", bytes, " (FakeCudaOptions::memory_bytes)");
    if (const CapturePtr capture = current_capture()) {
      block->graph = capture;
      capture->own(*block);
    }
    FakeCudaCounts counts;
    counts.allocations = 1;
    count(counts);
    return {block->data, block, &free_block, where};
  }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "FakeCuda: memory is copied by operations alone");
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (Block* block = machine().memory.find(data.get()))
      machine().memory.record_stream(*block, slot_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes}) {
      (*bytes)[0].current = static_cast<int64_t>(machine().memory.used(device));
      (*bytes)[0].peak = static_cast<int64_t>(machine().memory.peak(device));
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { machine().memory.reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const size_t all = machine().memory.bytes_each();
    return {all - machine().memory.used(device), all};
  }
};

void free_pinned(void* data) {
  pinned_memory().free(data);
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : pinned_memory().allocate(bytes);
    TORCH_CHECK(bytes == 0 || data != nullptr, "FakeCuda: no ", bytes, " bytes of host memory");
    return {data, data, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

MadeBy::MadeBy(std::string name) : before_(maker_now()) {
  if (before_ == kNobody) maker_now() = std::move(name);
}
MadeBy::~MadeBy() {
  maker_now() = std::move(before_);
}
const std::string& MadeBy::now() {
  return maker_now();
}

c10::Allocator* device_allocator() {
  static auto* const allocator = new DeviceAllocator;
  return allocator;
}

c10::Allocator* pinned_allocator() {
  static auto* const allocator = new PinnedAllocator;
  return allocator;
}

bool is_pinned(const void* data) {
  return pinned_memory().holds(data);
}

void register_allocator() {
  c10::SetAllocator(c10::DeviceType::CUDA, device_allocator());
}

}  // namespace lockstep::inline v0::testing::fake
