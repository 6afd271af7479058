#include "lockstep/testing/fake_cuda/internal/launch.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::inline v0::testing::fake {
namespace {

constexpr size_t kMostPieces = 256;

RaceKind kind_of(const Access& earlier, bool write) {
  if (!write) return RaceKind::kReadAfterWrite;
  return earlier.write ? RaceKind::kWriteAfterWrite : RaceKind::kWriteAfterRead;
}

}  // namespace

std::vector<ByteRange> byte_ranges(at::IntArrayRef sizes, at::IntArrayRef strides, size_t item,
                                   size_t begin) {
  // Dimensions from the innermost out; those that follow each other without a gap are one piece.
  std::vector<std::pair<size_t, size_t>> dims;  // stride in bytes, size
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return {};
    if (sizes[d] > 1 && strides[d] != 0)
      dims.emplace_back(static_cast<size_t>(strides[d]) * item, static_cast<size_t>(sizes[d]));
  }
  std::sort(dims.begin(), dims.end());
  size_t piece = item;
  size_t d = 0;
  for (; d < dims.size() && dims[d].first <= piece; ++d)
    piece = std::max(piece, dims[d].first * (dims[d].second - 1) + piece);
  std::vector<ByteRange> result{{begin, begin + piece}};
  for (; d < dims.size(); ++d) {
    const std::vector<ByteRange> inner = result;
    for (size_t i = 1; i < dims[d].second && result.size() < kMostPieces; ++i)
      for (const ByteRange& one : inner)
        result.push_back({one.begin + i * dims[d].first, one.end + i * dims[d].first});
  }
  if (result.size() > kMostPieces) result.resize(kMostPieces);
  return result;
}

Launch::Launch(std::string operation, StreamSlot stream)
    : operation_(std::move(operation)), stream_(stream), capture_(captures().of(stream)) {}

void Launch::touches(const void* data) {
  Block* block = machine().memory.find(data);
  if (block != nullptr && std::find(blocks_.begin(), blocks_.end(), block) == blocks_.end())
    blocks_.push_back(block);
}

void Launch::uses(const at::Tensor& tensor, bool write) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
  const auto* base = static_cast<const std::byte*>(tensor.storage().data());
  Block* block = machine().memory.find(base);
  if (block == nullptr) return;
  touches(base);
  const size_t item = tensor.element_size();
  const size_t begin =
      static_cast<size_t>(base - block->data) + static_cast<size_t>(tensor.storage_offset()) * item;
  uses_.push_back({block, byte_ranges(tensor.sizes(), tensor.strides(), item, begin), write});
}

void Launch::uses(const void* data, size_t bytes, bool write) {
  Block* block = bytes == 0 ? nullptr : machine().memory.find(data);
  if (block == nullptr) return;
  touches(data);
  const auto begin = static_cast<size_t>(static_cast<const std::byte*>(data) - block->data);
  uses_.push_back({block, {{begin, begin + bytes}}, write});
}

void Launch::uses(Block& block, std::vector<ByteRange> bytes, bool write) {
  touches(block.data);
  uses_.push_back({&block, std::move(bytes), write});
}

void Launch::capture(bool runs) {
  std::vector<CapturedUse> used;
  for (const Use& use : uses_)
    used.push_back({use.block->data, use.block->made, use.bytes, use.write});
  capture_->use(used, runs);
}

void Launch::start_captured() {
  capture(/*runs=*/false);
  place_ = place_of(std::move(operation_), stream_);
  moment_ = machine().timeline.launch(stream_, *Host::current());
  compare();
}

void Launch::start(bool late) {
  Machine& m = machine();
  m.use(m.timeline.device(stream_), 1);
  if (capture_) capture(/*runs=*/true);
  place_ = place_of(std::move(operation_), stream_);
  moment_ = m.timeline.launch(stream_, *Host::current());
  if (late) m.timeline.begin_late(moment_.stamp, place_->operation + " on " + place_->where);
  compare();
  if (late) return;
  m.timeline.wait_for(moment_.clock);
  for (Block* block : blocks_) m.memory.open(*block);
  open_ = true;
}

void Launch::compare() {
  Machine& m = machine();
  std::vector<PlacePtr> raced;  // with whom; once is enough
  for (const Use& use : uses_) {
    std::optional<Access> conflict;
    for (const ByteRange& bytes : use.bytes) {
      auto found =
          m.memory.add(*use.block, bytes, {moment_.stamp, place_, use.write}, moment_.clock);
      if (!conflict) conflict = std::move(found);
    }
    if (!conflict || std::find(raced.begin(), raced.end(), conflict->place) != raced.end())
      continue;
    m.races.add(kind_of(*conflict, use.write), conflict->place, place_, use.block->made);
    raced.push_back(conflict->place);
  }
}

Launch::~Launch() {
  if (!open_) return;
  for (Block* block : blocks_) machine().memory.close(*block);
}

}  // namespace lockstep::inline v0::testing::fake
