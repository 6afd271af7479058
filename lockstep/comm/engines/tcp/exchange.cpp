#include "lockstep/comm/engines/tcp/exchange.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "lockstep/comm/backend/reduce_kernels.h"
#include "lockstep/core/check.h"

namespace lockstep::inline v0::tcp {
namespace {

constexpr size_t kKeptBlocks = 4;
constexpr size_t kAlignment = 64;

}  // namespace

ScratchPool::Block ScratchPool::take(size_t bytes) {
  if (bytes == 0) return {};
  const auto fits = std::find_if(free_.begin(), free_.end(),
                                 [bytes](const Block& block) { return block.bytes >= bytes; });
  if (fits != free_.end()) {
    Block block = std::move(*fits);
    free_.erase(fits);
    return block;
  }
  if (!free_.empty()) free_.erase(free_.begin());  // a small buffer makes room for a larger one
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  Block block;
  block.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
  if (!block.memory) throw std::bad_alloc();
  block.bytes = rounded;
  return block;
}

void ScratchPool::give(Block block) {
  if (block.bytes > 0 && free_.size() < kKeptBlocks) free_.push_back(std::move(block));
}

Exchange::Exchange(Call call, std::shared_ptr<const Record> record, std::vector<int> members,
                   int index, uint64_t key)
    : call_(std::move(call)),
      record_(std::move(record)),
      members_(std::move(members)),
      ascending_(std::is_sorted(members_.begin(), members_.end())),
      index_(index),
      key_(key) {
  call_.note = {};  // its text may have been freed
  call_.record = nullptr;
}

const Exchange::Lane* Exchange::lane_of(int peer) const {
  const auto it = ascending_ ? std::lower_bound(members_.begin(), members_.end(), peer)
                             : std::find(members_.begin(), members_.end(), peer);
  if (it == members_.end() || *it != peer) return nullptr;
  const int32_t lane = lane_index_[static_cast<size_t>(it - members_.begin())];
  return lane < 0 ? nullptr : &lanes_[static_cast<size_t>(lane)];
}

std::byte* Exchange::memory(const Piece& piece) const {
  switch (piece.place) {
    case Place::kInput:
      return const_cast<std::byte*>(call_.input) + piece.offset;
    case Place::kOutput:
      return call_.output + piece.offset;
    case Place::kScratch:
      return scratch_.memory.get() + piece.offset;
  }
  return nullptr;
}

void Exchange::activate(Wire& wire, ScratchPool& pool, const ScheduleSizes& sizes) {
  wire_ = &wire;
  active_ = true;
  const auto size = static_cast<int>(members_.size());
  schedule_ = make_schedule(call_, index_, size, sizes);
  scratch_ = pool.take(static_cast<size_t>(schedule_.scratch_bytes));

  const size_t count = schedule_.steps.size();
  left_ = count;
  blocked_.assign(count, 0);
  first_later_.assign(count + 1, 0);
  for (const auto& [earlier, later] : schedule_.edges) {
    ++blocked_[later];
    ++first_later_[earlier + 1];
  }
  for (size_t i = 0; i < count; ++i) first_later_[i + 1] += first_later_[i];
  later_.resize(schedule_.edges.size());
  std::vector<int32_t> fill(first_later_.begin(), first_later_.end() - 1);
  for (const auto& [earlier, later] : schedule_.edges) later_[fill[earlier]++] = later;

  lane_index_.assign(static_cast<size_t>(size), -1);
  const auto lane = [this](int index) -> Lane& {
    int32_t& at = lane_index_[static_cast<size_t>(index)];
    if (at < 0) {
      at = static_cast<int32_t>(lanes_.size());
      lanes_.emplace_back().peer = members_[static_cast<size_t>(index)];
    }
    return lanes_[static_cast<size_t>(at)];
  };
  for (size_t i = 0; i < count; ++i) {
    const Step& step = schedule_.steps[i];
    if (step.kind == Step::Kind::kSend) {
      Lane& to = lane(step.peer);
      to.sends.push_back(static_cast<int32_t>(i));
      to.send_bytes += step.piece.bytes;
    } else if (step.kind == Step::Kind::kReceive) {
      Lane& from = lane(step.peer);
      from.receives.push_back(static_cast<int32_t>(i));
      from.receive_bytes += step.piece.bytes;
    }
  }
  // Only two ranks each know a count of an all_to_all, so both report it.
  const bool all_tell = call_.op == Op::kAllToAll;
  if (all_tell) {
    for (int i = 0; i < size; ++i) {
      if (i != index_) lane(i).must_hear = true;
    }
  }
  for (Lane& one : lanes_) {
    if (one.send_bytes > kEagerBytes) one.must_hear = true;
    if (one.must_hear) ++left_;
  }
  for (const Lane& one : lanes_) {
    if (all_tell || !one.sends.empty() || one.receive_bytes > kEagerBytes)
      wire.send_call(one.peer, *this, static_cast<uint64_t>(one.send_bytes));
  }
  for (size_t i = 0; i < count; ++i) {
    const Step::Kind kind = schedule_.steps[i].kind;
    if (blocked_[i] == 0 && (kind == Step::Kind::kCopy || kind == Step::Kind::kReduce))
      run(static_cast<int32_t>(i));
  }
  for (Lane& one : lanes_) push_sends(one);
}

void Exchange::peer_started(int peer) {
  Lane* lane = lane_of(peer);
  if (lane == nullptr || lane->heard) return;
  lane->heard = true;
  if (!lane->must_hear) return;
  --left_;
  push_sends(*lane);
}

void Exchange::push_sends(Lane& lane) {
  if (lane.send_bytes > kEagerBytes && !lane.heard) return;
  while (lane.next_send < lane.sends.size()) {
    const int32_t index = lane.sends[lane.next_send];
    if (blocked_[index] > 0) return;
    const Piece& piece = schedule_.steps[index].piece;
    ++lane.next_send;
    wire_->send_data(lane.peer, key_, piece.bytes > 0 ? memory(piece) : nullptr,
                     static_cast<size_t>(piece.bytes), shared_from_this(), index);
  }
}

std::byte* Exchange::expect(int peer, size_t bytes, bool& expected) {
  Lane* lane = lane_of(peer);
  expected = false;
  if (lane == nullptr || lane->next_receive == lane->receives.size()) return nullptr;
  const Piece& piece = schedule_.steps[lane->receives[lane->next_receive]].piece;
  if (static_cast<size_t>(piece.bytes) != bytes) return nullptr;
  expected = true;
  return bytes > 0 ? memory(piece) : nullptr;
}

void Exchange::received(int peer) {
  Lane* lane = lane_of(peer);
  LOCKSTEP_CHECK(lane != nullptr, "only what was expected is received");
  finish(lane->receives[lane->next_receive++]);
}

void Exchange::sent(int token) {
  const Step& step = schedule_.steps[static_cast<size_t>(token)];
  ++lanes_[static_cast<size_t>(lane_index_[static_cast<size_t>(step.peer)])].sent;
  finish(token);
}

void Exchange::finish(int32_t step) {
  --left_;
  for (int32_t i = first_later_[step]; i < first_later_[step + 1]; ++i) {
    const int32_t next = later_[i];
    if (--blocked_[next] > 0) continue;
    const Step& ready = schedule_.steps[next];
    if (ready.kind == Step::Kind::kSend)
      push_sends(lanes_[static_cast<size_t>(lane_index_[static_cast<size_t>(ready.peer)])]);
    else
      run(next);
  }
}

void Exchange::run(int32_t index) {
  const Step& step = schedule_.steps[index];
  std::byte* to = memory(step.piece);
  if (step.kind == Step::Kind::kCopy) {
    const std::byte* from = memory(step.from[0]);
    if (from != to) std::memmove(to, from, static_cast<size_t>(step.piece.bytes));
  } else {
    std::vector<const std::byte*> inputs;
    inputs.reserve(step.from.size());
    for (const Piece& piece : step.from) inputs.push_back(memory(piece));
    reduce_buffers(to, inputs,
                   step.piece.bytes / static_cast<int64_t>(c10::elementSize(call_.dtype)),
                   call_.dtype, call_.reduce);
  }
  finish(index);
}

std::vector<int> Exchange::awaited() const {
  std::vector<int> ranks;
  for (const Lane& lane : lanes_) {
    const bool silent = lane.must_hear && !lane.heard;
    const bool incoming = lane.next_receive < lane.receives.size();
    const bool outgoing = lane.sent < lane.next_send;  // pushed, but not written yet
    if (silent || incoming || outgoing) ranks.push_back(lane.peer);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace lockstep::inline v0::tcp
