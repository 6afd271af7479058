#include "lockstep/comm/rounds/region.h"

#include <algorithm>
#include <new>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::rounds {
namespace {

constexpr uint64_t kMagic = 0x314e4745524b534cULL;  // "LSKREGN1"

constexpr size_t round_up(size_t value) {
  return (value + kLine - 1) / kLine * kLine;
}

constexpr size_t kHeaderBytes = round_up(sizeof(RegionHeader));
constexpr size_t kRankBytes = round_up(sizeof(RankState));
constexpr size_t kSlotHeaderBytes = round_up(sizeof(CallHeader));
constexpr size_t kChannelStateBytes = round_up(sizeof(ChannelState));

size_t slot_stride(const RegionShape& shape) {
  return kSlotHeaderBytes + shape.slot_bytes;
}
size_t channel_stride(const RegionShape& shape) {
  return kChannelStateBytes + shape.channel_bytes;
}

size_t slots_offset(const RegionShape& shape) {
  return kHeaderBytes + kRankBytes * shape.size;
}
size_t channels_offset(const RegionShape& shape) {
  return slots_offset(shape) + slot_stride(shape) * kSlots * shape.size;
}

static_assert(std::atomic<uint64_t>::is_always_lock_free, "counters cross process borders");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "flags cross process borders");

}  // namespace

RegionShape default_shape(int size) {
  RegionShape shape;
  shape.size = size;
  // All channels together stay below 16 MiB of address space up to 64 ranks.
  const size_t budget = (16u << 20) / (static_cast<size_t>(size) * size);
  shape.channel_bytes =
      static_cast<uint32_t>(std::clamp<size_t>(budget / kLine * kLine, 4096, 256 * 1024));
  return shape;
}

size_t Region::bytes(const RegionShape& shape) {
  return channels_offset(shape) +
         channel_stride(shape) * static_cast<size_t>(shape.size) * static_cast<size_t>(shape.size);
}

Region::Region(std::byte* memory, const RegionShape& shape) : memory_(memory), shape_(shape) {
  LOCKSTEP_CHECK(reinterpret_cast<uintptr_t>(memory) % kLine == 0,
                 "a region is aligned to its lines");
  LOCKSTEP_CHECK(shape.slot_bytes % kLine == 0 && shape.channel_bytes % kLine == 0,
                 "slots and channels keep the alignment");
}

void Region::initialise() {
  auto* header = new (memory_) RegionHeader();
  header->size = shape_.size;
  header->slot_bytes = shape_.slot_bytes;
  header->channel_bytes = shape_.channel_bytes;
  for (int r = 0; r < shape_.size; ++r) {
    new (&rank(r)) RankState();
    for (int d = 0; d < shape_.size; ++d) new (&channel(r, d)) ChannelState();
  }
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

RankState& Region::rank(int rank) const {
  return *reinterpret_cast<RankState*>(memory_ + kHeaderBytes +
                                       kRankBytes * static_cast<size_t>(rank));
}

CallHeader& Region::slot_header(int rank, uint64_t round) const {
  const size_t index = static_cast<size_t>(rank) * kSlots + round % kSlots;
  return *reinterpret_cast<CallHeader*>(memory_ + slots_offset(shape_) +
                                        slot_stride(shape_) * index);
}

std::byte* Region::slot_payload(int rank, uint64_t round) const {
  return reinterpret_cast<std::byte*>(&slot_header(rank, round)) + kSlotHeaderBytes;
}

ChannelState& Region::channel(int src, int dst) const {
  const size_t index =
      static_cast<size_t>(src) * static_cast<size_t>(shape_.size) + static_cast<size_t>(dst);
  return *reinterpret_cast<ChannelState*>(memory_ + channels_offset(shape_) +
                                          channel_stride(shape_) * index);
}

std::byte* Region::channel_ring(int src, int dst) const {
  return reinterpret_cast<std::byte*>(&channel(src, dst)) + kChannelStateBytes;
}

}  // namespace lockstep::rounds
