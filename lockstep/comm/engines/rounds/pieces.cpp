#include "lockstep/comm/engines/rounds/pieces.h"

#include <algorithm>
#include <numeric>

namespace lockstep::inline v0::rounds {

Share share_of(int64_t bytes, int rank, int size) {
  constexpr int64_t kAlignment = 64;
  const int64_t lines = (bytes + kAlignment - 1) / kAlignment;
  const auto bound = [&](int r) { return std::min(bytes, lines * r / size * kAlignment); };
  return {bound(rank), rank + 1 == size ? bytes : bound(rank + 1)};
}

Pieces::Pieces(const Call& call, int rank, int size)
    : call_(call),
      rank_(rank),
      size_(size),
      element_(static_cast<int64_t>(c10::elementSize(call.dtype))) {}

bool Pieces::offered(const Call& call) {
  return call.op != Op::kAllToAll || call.uniform;
}

int64_t Pieces::before(int rank) const {
  return std::accumulate(call_.counts.begin(), call_.counts.begin() + rank, int64_t{0}) * element_;
}

int64_t Pieces::offer(int rank) const {
  switch (call_.op) {
    case Op::kBroadcast:
      return rank == call_.root ? call_.count * element_ : 0;
    case Op::kReduce:
    case Op::kAllReduce:
      return call_.count * element_;
    case Op::kGather:
    case Op::kAllGather:
      return call_.counts[static_cast<size_t>(rank)] * element_;
    case Op::kScatter:
      return rank == call_.root ? before(size_) : 0;
    case Op::kReduceScatter:
    case Op::kAllToAll:
      return before(size_);
    default:
      return 0;
  }
}

int64_t Pieces::largest_offer() const {
  switch (call_.op) {
    case Op::kBroadcast:
    case Op::kScatter:
      return offer(call_.root);
    case Op::kGather:
    case Op::kAllGather:
      return *std::max_element(call_.counts.begin(), call_.counts.end()) * element_;
    default:
      return offer(0);
  }
}

const std::byte* Pieces::own() const {
  if (offer(rank_) == 0) return nullptr;
  return call_.op == Op::kBroadcast ? call_.output : call_.input;
}

Piece Pieces::piece(int source, int taker) const {
  const auto part = [this](int rank) { return call_.counts[static_cast<size_t>(rank)] * element_; };
  switch (call_.op) {
    case Op::kBroadcast:
      if (source != call_.root || taker == call_.root) return {};
      return {0, call_.count * element_, 0};
    case Op::kReduce:
      if (taker != call_.root) return {};
      return {0, call_.count * element_, 0};
    case Op::kAllReduce:
      return {0, call_.count * element_, 0};
    case Op::kGather:
      if (taker != call_.root) return {};
      return {0, part(source), before(source)};
    case Op::kAllGather:
      return {0, part(source), before(source)};
    case Op::kScatter:
      if (source != call_.root) return {};
      return {before(taker), part(taker), 0};
    case Op::kReduceScatter:
      return {before(taker), part(taker), 0};
    case Op::kAllToAll:
      return {before(taker), part(taker), before(source)};
    default:
      return {};
  }
}

Piece Pieces::taken_from(int source) const {
  return piece(source, rank_);
}

Piece Pieces::given_to(int taker) const {
  return piece(rank_, taker);
}

bool Pieces::gives_to(int taker) const {
  return piece(rank_, taker).bytes > 0;
}

}  // namespace lockstep::inline v0::rounds
