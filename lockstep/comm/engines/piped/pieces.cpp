#include "lockstep/comm/engines/piped/pieces.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace lockstep::inline v0::piped {
namespace {

using Counts = std::vector<int64_t>;

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// The elements of each part that belong to a piece.
struct Window {
  int64_t begin = 0;
  int64_t step = kAll;

  int64_t of(int64_t count) const { return std::clamp(count - begin, int64_t{0}, step); }
  Counts of(const Counts& counts) const {
    Counts result;
    for (const int64_t count : counts) result.push_back(of(count));
    return result;
  }
};

// The window's share of the parts, which are contiguous at `device`; in host memory they are
// contiguous from `host`.
std::vector<Span> spans(std::byte* device, const Counts& parts, const Window& window, int64_t host,
                        int64_t width) {
  std::vector<Span> result;
  for (const int64_t count : parts) {
    const int64_t bytes = window.of(count) * width;
    if (bytes > 0) result.push_back({device + window.begin * width, host, bytes});
    device += count * width;
    host += bytes;
  }
  return result;
}

// The parts that the rank sends and receives; empty: none.
struct Sides {
  Counts input, output;
};
Sides sides_of(const Call& call, int rank) {
  const auto own = [&] { return Counts{call.counts[static_cast<size_t>(rank)]}; };
  const auto if_given = [](const void* data, Counts counts) {
    return data != nullptr ? std::move(counts) : Counts();
  };
  switch (call.op) {
    case Op::kBarrier:
      return {};
    case Op::kBroadcast:
      return {{}, {call.count}};
    case Op::kReduce:
    case Op::kAllReduce:
      return {{call.count}, if_given(call.output, {call.count})};
    case Op::kGather:
      return {own(), if_given(call.output, call.counts)};
    case Op::kAllGather:
      return {own(), call.counts};
    case Op::kScatter:
      return {if_given(call.input, call.counts), own()};
    case Op::kReduceScatter:
      return {call.counts, own()};
    case Op::kAllToAll:
      return {call.counts, call.recv_counts};
    case Op::kSend:
      return {{call.count}, {}};
    case Op::kRecv:
      return {{}, {call.count}};
  }
  return {};
}

bool may_be_cut(const Call& call) {
  if (call.op == Op::kAllToAll) return call.uniform;
  return call.op != Op::kBarrier && call.op != Op::kSend && call.op != Op::kRecv;
}

}  // namespace

std::vector<Piece> cut(const Call& call, int rank, int size, int64_t slot_bytes) {
  const auto width = static_cast<int64_t>(c10::elementSize(call.dtype));
  const Sides sides = sides_of(call, rank);
  const bool root_sends = call.op == Op::kBroadcast && rank == call.root;
  // Input and output are the same memory on the device, and therefore on the host.
  const bool in_place = call.input != nullptr && call.input == call.output;
  const auto before =
      call.op == Op::kAllGather ? total({call.counts.begin(), call.counts.begin() + rank}) : 0;
  const bool own_part = call.op == Op::kAllGather && call.input != nullptr &&
                        call.input == call.output + before * width;
  int64_t longest = call.count;
  for (const int64_t count : call.counts) longest = std::max(longest, count);
  Window window;
  if (slot_bytes > 0 && may_be_cut(call))
    window.step =
        std::max(int64_t{1}, slot_bytes / (width * (call.counts.empty() ? 1 : int64_t{size})));

  std::vector<Piece> pieces;
  do {
    Piece piece;
    piece.call = call;
    piece.call.input = nullptr;
    piece.call.output = nullptr;
    piece.call.count = window.of(call.count);
    piece.call.counts = window.of(call.counts);
    piece.call.recv_counts = window.of(call.recv_counts);
    auto* const input = const_cast<std::byte*>(call.input);
    if (!sides.output.empty()) {
      piece.output = 0;
      piece.bytes = total(window.of(sides.output)) * width;
      auto there = spans(call.output, sides.output, window, 0, width);
      (root_sends ? piece.down : piece.up) = std::move(there);
    }
    if (!sides.input.empty()) {
      if (own_part) {
        const Counts earlier(piece.call.counts.begin(), piece.call.counts.begin() + rank);
        piece.input = total(earlier) * width;
      } else if (in_place && piece.output == 0) {
        piece.input = 0;
      } else {
        constexpr int64_t kAlign = 64;
        piece.input = (piece.bytes + kAlign - 1) / kAlign * kAlign;
        piece.bytes = piece.input + total(window.of(sides.input)) * width;
      }
      piece.down = spans(input, sides.input, window, piece.input, width);
    }
    pieces.push_back(std::move(piece));
    if (window.step == kAll) break;
    window.begin += window.step;
  } while (window.begin < longest);
  if (pieces.size() == 1) return pieces;
  // Calls that differ must differ from their first piece on.
  for (Piece& piece : pieces) piece.call.note.key ^= fingerprint(call) | 1;
  return pieces;
}

}  // namespace lockstep::inline v0::piped
