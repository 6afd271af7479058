#include "lockstep/comm/engines/rounds/region.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::rounds {
namespace {

constexpr uint64_t kMagic = 0x334e4745524b534cULL;  // "LSKREGN3"

constexpr size_t round_up(size_t value) {
  return (value + kLine - 1) / kLine * kLine;
}

constexpr size_t kChannelStateBytes = round_up(sizeof(ChannelState));

size_t channel_stride(const RegionShape& shape) {
  return kChannelStateBytes + shape.channel_bytes;
}

static_assert(std::atomic<uint64_t>::is_always_lock_free, "counters cross process borders");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "flags cross process borders");
static_assert(sizeof(CallDescriptor) == 2 * kLine && sizeof(RankState) % kLine == 0);

}  // namespace

RegionShape default_shape(int size) {
  RegionShape shape;
  shape.size = size;
  // Keeps all channels together below 16 MiB of address space for up to 64 ranks.
  const size_t budget = (16u << 20) / (static_cast<size_t>(size) * size);
  shape.channel_bytes =
      static_cast<uint32_t>(std::clamp<size_t>(budget / kLine * kLine, 4096, 256 * 1024));
  return shape;
}

std::shared_ptr<void> fresh_memory(const RegionShape& shape) {
  const size_t bytes = Region::bytes(shape);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw system_error("mmap of a group's memory", errno);
  // Prevents large pages, which would dominate the memory, as only small parts of each are touched.
  (void)::madvise(memory, bytes, MADV_NOHUGEPAGE);
  return {memory, [bytes](void* p) { ::munmap(p, bytes); }};
}

Region::Region(std::byte* memory, const RegionShape& shape) : memory_(memory), shape_(shape) {
  LOCKSTEP_CHECK(reinterpret_cast<uintptr_t>(memory) % kLine == 0,
                 "a region is aligned to its lines");
  LOCKSTEP_CHECK(shape.slot_bytes % kLine == 0 && shape.channel_bytes % kLine == 0,
                 "slots and channels keep the alignment");
  const auto size = static_cast<size_t>(shape.size);
  ranks_ = round_up(sizeof(RegionHeader));
  descriptors_ = ranks_ + size * sizeof(RankState);
  lines_ = descriptors_ + size * kDescriptors * sizeof(CallDescriptor);
  slots_ = lines_ + 2 * size * kLineStride * sizeof(Line);
  channels_ = slots_ + size * kSlots * shape.slot_bytes;
}

size_t Region::bytes(const RegionShape& shape) {
  const Region layout(nullptr, shape);
  return layout.channels_ +
         channel_stride(shape) * static_cast<size_t>(shape.size) * static_cast<size_t>(shape.size);
}

void Region::initialise() {
  auto* header = new (memory_) RegionHeader();
  header->size = shape_.size;
  header->slot_bytes = shape_.slot_bytes;
  header->channel_bytes = shape_.channel_bytes;
  header->magic = kMagic;
}

void Region::verify() const {
  const RegionHeader& h = header();
  if (h.magic != kMagic || h.size != shape_.size || h.slot_bytes != shape_.slot_bytes ||
      h.channel_bytes != shape_.channel_bytes) {
    throw Mismatch(
        "the shared region of this job has another layout than this program expects; run the same "
        "Lockstep version on every rank");
  }
}

ChannelState& Region::channel(int src, int dst) const {
  const size_t index =
      static_cast<size_t>(src) * static_cast<size_t>(shape_.size) + static_cast<size_t>(dst);
  return *reinterpret_cast<ChannelState*>(memory_ + channels_ + channel_stride(shape_) * index);
}

std::byte* Region::channel_ring(int src, int dst) const {
  return reinterpret_cast<std::byte*>(&channel(src, dst)) + kChannelStateBytes;
}

}  // namespace lockstep::inline v0::rounds
