#include "lockstep/comm/engines/peer/layout.h"

#include <algorithm>

namespace lockstep::inline v0::peer {
namespace {

int64_t width_of(const Call& call) {
  return static_cast<int64_t>(c10::elementSize(call.dtype));
}

// The number of a part's elements in the window.
int64_t in_window(const Layout& layout, int64_t window, int64_t count) {
  return std::clamp(count - window * layout.step, int64_t{0}, layout.step);
}

// Whether a rank that gives data gives a part for every rank.
bool gives_parts(Op op) {
  return op == Op::kScatter || op == Op::kReduceScatter || op == Op::kAllToAll;
}

}  // namespace

Layout lay_out(const Call& call, int size, int64_t slot_bytes) {
  Layout layout;
  layout.stride = slot_bytes / (gives_parts(call.op) ? size : 1) / kAlign * kAlign;
  layout.step = layout.stride / width_of(call);
  int64_t longest = call.count;
  for (const auto* counts : {&call.counts, &call.recv_counts})
    for (const int64_t count : *counts) longest = std::max(longest, count);
  layout.windows = std::max(int64_t{1}, (longest + layout.step - 1) / layout.step);
  return layout;
}

std::vector<Gift> gifts(const Call& call, const Layout& layout, int64_t window, int rank) {
  const int64_t width = width_of(call);
  std::vector<Gift> result;
  const auto give = [&](const std::byte* part, int64_t count, int64_t slot) {
    const int64_t elements = in_window(layout, window, count);
    if (elements > 0)
      result.push_back({part + window * layout.step * width, slot, elements * width});
  };
  switch (call.op) {
    case Op::kBroadcast:
      if (rank == call.root) give(call.output, call.count, 0);
      break;
    case Op::kReduce:
    case Op::kAllReduce:
      give(call.input, call.count, 0);
      break;
    case Op::kGather:
    case Op::kAllGather:
      give(call.input, call.counts[static_cast<size_t>(rank)], 0);
      break;
    case Op::kScatter:
    case Op::kReduceScatter:
    case Op::kAllToAll: {
      const std::byte* part = call.input;
      int64_t slot = 0;
      if (call.op == Op::kScatter && rank != call.root) break;
      for (const int64_t count : call.counts) {
        give(part, count, slot);
        part += count * width;
        slot += layout.stride;
      }
      break;
    }
    case Op::kBarrier:
    case Op::kSend:
    case Op::kRecv:
      break;  // does not use blocks
  }
  return result;
}

std::vector<Take> takes(const Call& call, const Layout& layout, int64_t window, int rank) {
  const int64_t width = width_of(call);
  const int64_t own_share = rank * layout.stride;
  std::vector<Take> result;
  const auto take = [&](int from, int64_t slot, std::byte* to, int64_t count) {
    const int64_t elements = in_window(layout, window, count);
    if (elements > 0) result.push_back({from, slot, to + window * layout.step * width, elements});
  };
  const auto take_of_each = [&](const std::vector<int64_t>& counts, int64_t slot) {
    std::byte* to = call.output;
    for (size_t r = 0; r < counts.size(); ++r) {
      // all_gather's own part may be in place already.
      const bool is_there = static_cast<int>(r) == rank && to == call.input;
      if (!is_there) take(static_cast<int>(r), slot, to, counts[r]);
      to += counts[r] * width;
    }
  };
  const auto own_count = [&] { return call.counts[static_cast<size_t>(rank)]; };
  switch (call.op) {
    case Op::kBroadcast:
      if (rank != call.root) take(call.root, 0, call.output, call.count);
      break;
    case Op::kReduce:
      if (rank == call.root) take(-1, 0, call.output, call.count);
      break;
    case Op::kAllReduce:
      take(-1, 0, call.output, call.count);
      break;
    case Op::kGather:
      if (rank == call.root) take_of_each(call.counts, 0);
      break;
    case Op::kAllGather:
      take_of_each(call.counts, 0);
      break;
    case Op::kScatter:
      take(call.root, own_share, call.output, own_count());
      break;
    case Op::kReduceScatter:
      take(-1, own_share, call.output, own_count());
      break;
    case Op::kAllToAll:
      take_of_each(call.recv_counts, own_share);
      break;
    case Op::kBarrier:
    case Op::kSend:
    case Op::kRecv:
      break;
  }
  return result;
}

Share share(int64_t elements, int rank, int size) {
  // Rounded to whole cache lines, for every dtype.
  const int64_t each = ((elements + size - 1) / size + kAlign - 1) / kAlign * kAlign;
  const int64_t begin = std::min(elements, rank * each);
  return {begin, std::min(each, elements - begin)};
}

}  // namespace lockstep::inline v0::peer
