#include "lockstep/comm/engines/rounds/program.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "lockstep/comm/backend/reduce_kernels.h"
#include "lockstep/comm/engines/rounds/pieces.h"
#include "lockstep/comm/engines/rounds/stream_copy.h"
#include "lockstep/core/check.h"

namespace lockstep::inline v0::rounds {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// A range of bytes, cut into chunks of `chunk` bytes, one per round.
struct Chunks {
  int64_t total;
  int64_t chunk;
  int64_t rounds() const { return ceil_div(total, chunk); }
  int64_t begin(int64_t round) const { return std::min(total, round * chunk); }
  int64_t size(int64_t round) const { return std::min(total, (round + 1) * chunk) - begin(round); }
};

// Byte offsets of consecutive parts.
std::vector<int64_t> offsets(const std::vector<int64_t>& counts, int64_t element) {
  std::vector<int64_t> result(counts.size());
  int64_t at = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    result[i] = at;
    at += counts[i] * element;
  }
  return result;
}

// The common data of the builders.
struct Context {
  const Call& call;
  int rank;
  const Region& region;
  int size = region.shape().size;
  int64_t element = static_cast<int64_t>(c10::elementSize(call.dtype));
  int64_t slot = region.shape().slot_bytes;
  int64_t lane = widest_lane();

  // The size in bytes.
  int64_t longest_part(const std::vector<int64_t>& counts) const {
    return *std::max_element(counts.begin(), counts.end()) * element;
  }
  int64_t widest_lane() const {
    const int64_t most = slot / size / static_cast<int64_t>(kLine) * static_cast<int64_t>(kLine);
    // In an all_to_all of unequal parts no rank knows the longest one.
    if (call.counts.empty() || (call.op == Op::kAllToAll && !call.uniform)) return most;
    const int64_t longest = longest_part(call.counts);
    return std::min(most, std::max(Slots::rounded_up(longest), static_cast<int64_t>(kLine)));
  }
  Program in_lanes() const { return Program(Slots(region, lane * size)); }
  Program in_chunks(int64_t longest) const {
    return Program(Slots(region, std::min(longest, slot)));
  }

  // The number of rounds that the longest of the parts in `counts` needs, each cut into chunks of
  // `chunk` bytes.
  int64_t longest(const std::vector<int64_t>& counts, int64_t chunk) const {
    return std::max<int64_t>(1, ceil_div(longest_part(counts), chunk));
  }
};

Program broadcast(const Context& c) {
  const Chunks chunks{c.call.count * c.element, c.slot};
  Program p = c.in_chunks(chunks.total);
  p.rounds = std::max<int64_t>(1, chunks.rounds());
  if (c.rank == c.call.root) {
    p.produce = [chunks, from = c.call.output](int64_t round, std::byte* payload) {
      rounds::copy(payload, from + chunks.begin(round), chunks.size(round));
    };
  } else {
    p.reads = Reads::kRoot;
    p.consume = [chunks, to = c.call.output, root = c.call.root, slots = p.slots](int64_t round,
                                                                                  uint64_t at) {
      rounds::copy(to + chunks.begin(round), slots.at(root, at), chunks.size(round));
    };
  }
  return p;
}

// For reduce and all_reduce: every reader adds up all ranks' slots in rank order.
Program reduce(const Context& c) {
  const Chunks chunks{c.call.count * c.element, c.slot};
  Program p = c.in_chunks(chunks.total);
  p.rounds = std::max<int64_t>(1, chunks.rounds());
  p.produce = [chunks, from = c.call.input](int64_t round, std::byte* payload) {
    rounds::copy(payload, from + chunks.begin(round), chunks.size(round));
  };
  if (c.call.op == Op::kAllReduce || c.rank == c.call.root) {
    p.reads = Reads::kEverybody;
    p.consume = [chunks, to = c.call.output, element = c.element, dtype = c.call.dtype,
                 op = c.call.reduce, inputs = std::vector<const std::byte*>(c.size),
                 slots = p.slots](int64_t round, uint64_t at) mutable {
      const int64_t bytes = chunks.size(round);
      if (bytes == 0) return;
      for (size_t r = 0; r < inputs.size(); ++r) inputs[r] = slots.at(static_cast<int>(r), at);
      reduce_buffers(to + chunks.begin(round), inputs, bytes / element, dtype, op);
    };
  }
  return p;
}

// all_reduce, shared out: of every chunk each rank puts the others' shares into its slot, adds up
// its own share of all slots, and writes the sums to the place of its own share. Half of the chunk
// travels each way, and no rank repeats another's additions.
Program reduce_in_shares(const Context& c) {
  const Chunks chunks{c.call.count * c.element, c.slot};
  Program p = c.in_chunks(chunks.total);
  p.rounds = std::max<int64_t>(1, chunks.rounds());
  p.reads = Reads::kEverybody;
  p.produce = [chunks, from = c.call.input, rank = c.rank, size = c.size](int64_t round,
                                                                          std::byte* payload) {
    const int64_t bytes = chunks.size(round);
    const Share own = share_of(bytes, rank, size);
    const std::byte* chunk = from + chunks.begin(round);
    rounds::copy(payload, chunk, own.begin);
    rounds::copy(payload + own.end, chunk + own.end, bytes - own.end);
  };
  p.combine = [chunks, from = c.call.input, to = c.call.output, element = c.element,
               dtype = c.call.dtype, op = c.call.reduce, rank = c.rank,
               inputs = std::vector<const std::byte*>(c.size),
               slots = p.slots](int64_t round, uint64_t at) mutable {
    const auto size = static_cast<int>(inputs.size());
    const Share own = share_of(chunks.size(round), rank, size);
    if (own.bytes() == 0) return;
    const int64_t begin = chunks.begin(round) + own.begin;
    for (int r = 0; r < size; ++r)
      inputs[static_cast<size_t>(r)] = r == rank ? from + begin : slots.at(r, at) + own.begin;
    const std::array<std::byte*, 2> outputs = {to + begin, slots.at(rank, at) + own.begin};
    reduce_buffers({outputs.data(), size == 1 ? size_t{1} : outputs.size()}, inputs,
                   own.bytes() / element, dtype, op);
  };
  p.consume = [chunks, to = c.call.output, rank = c.rank, size = c.size, slots = p.slots](
                  int64_t round, uint64_t at) {
    for (int step = 1; step < size; ++step) {
      const int r = (rank + step) % size;
      const Share share = share_of(chunks.size(round), r, size);
      rounds::copy(to + chunks.begin(round) + share.begin, slots.at(r, at) + share.begin,
                   share.bytes());
    }
  };
  return p;
}

// For gather and all_gather.
Program gather(const Context& c) {
  Program p = c.in_chunks(c.longest_part(c.call.counts));
  p.rounds = c.longest(c.call.counts, c.slot);
  const Chunks mine{c.call.counts[c.rank] * c.element, c.slot};
  p.produce = [mine, from = c.call.input](int64_t round, std::byte* payload) {
    rounds::copy(payload, from + mine.begin(round), mine.size(round));
  };
  if (c.call.op == Op::kAllGather || c.rank == c.call.root) {
    p.reads = Reads::kEverybody;
    p.consume = [to = c.call.output, starts = offsets(c.call.counts, c.element),
                 counts = c.call.counts, element = c.element, slot = c.slot,
                 slots = p.slots](int64_t round, uint64_t at) {
      for (size_t r = 0; r < counts.size(); ++r) {
        const Chunks part{counts[r] * element, slot};
        rounds::copy(to + starts[r] + part.begin(round), slots.at(static_cast<int>(r), at),
                     part.size(round));
      }
    };
  }
  return p;
}

// A rank's parts for all other ranks, one per lane.
std::function<void(int64_t, std::byte*)> lanes(const Context& c) {
  return [from = c.call.input, starts = offsets(c.call.counts, c.element), counts = c.call.counts,
          element = c.element, lane = c.lane](int64_t round, std::byte* payload) {
    for (size_t d = 0; d < counts.size(); ++d) {
      const Chunks part{counts[d] * element, lane};
      rounds::copy(payload + static_cast<int64_t>(d) * lane, from + starts[d] + part.begin(round),
                   part.size(round));
    }
  };
}

Program scatter(const Context& c) {
  Program p = c.in_lanes();
  p.rounds = c.longest(c.call.counts, c.lane);
  if (c.rank == c.call.root) p.produce = lanes(c);
  p.reads = Reads::kRoot;
  const Chunks mine{c.call.counts[c.rank] * c.element, c.lane};
  p.consume = [mine, to = c.call.output, root = c.call.root, at_lane = c.rank * c.lane,
               slots = p.slots](int64_t round, uint64_t at) {
    rounds::copy(to + mine.begin(round), slots.at(root, at) + at_lane, mine.size(round));
  };
  return p;
}

Program reduce_scatter(const Context& c) {
  Program p = c.in_lanes();
  p.rounds = c.longest(c.call.counts, c.lane);
  p.produce = lanes(c);
  p.reads = Reads::kEverybody;
  const Chunks mine{c.call.counts[c.rank] * c.element, c.lane};
  p.consume = [mine, to = c.call.output, element = c.element, dtype = c.call.dtype,
               op = c.call.reduce, at_lane = c.rank * c.lane,
               inputs = std::vector<const std::byte*>(c.size),
               slots = p.slots](int64_t round, uint64_t at) mutable {
    const int64_t bytes = mine.size(round);
    if (bytes == 0) return;
    for (size_t r = 0; r < inputs.size(); ++r) {
      inputs[r] = slots.at(static_cast<int>(r), at) + at_lane;
    }
    reduce_buffers(to + mine.begin(round), inputs, bytes / element, dtype, op);
  };
  return p;
}

Program all_to_all(const Context& c) {
  Program p = c.in_lanes();
  p.rounds = c.longest(c.call.counts, c.lane);
  p.dynamic = true;
  p.produce = lanes(c);
  p.reads = Reads::kEverybody;
  p.consume = [to = c.call.output, starts = offsets(c.call.recv_counts, c.element),
               counts = c.call.recv_counts, element = c.element, lane = c.lane,
               at_lane = c.rank * c.lane, slots = p.slots](int64_t round, uint64_t at) {
    for (size_t r = 0; r < counts.size(); ++r) {
      const Chunks part{counts[r] * element, lane};
      rounds::copy(to + starts[r] + part.begin(round), slots.at(static_cast<int>(r), at) + at_lane,
                   part.size(round));
    }
  };
  return p;
}

}  // namespace

Program make_program(const Call& call, int rank, const Region& region, int64_t shares_from) {
  const Context context{call, rank, region};
  LOCKSTEP_CHECK(context.lane > 0, "a slot has a lane for every rank");
  switch (call.op) {
    case Op::kBarrier: {
      Program p = context.in_chunks(0);
      p.reads = Reads::kEverybody;
      return p;
    }
    case Op::kBroadcast:
      return broadcast(context);
    case Op::kAllReduce:
      if (call.count * context.element >= shares_from) return reduce_in_shares(context);
      return reduce(context);
    case Op::kReduce:
      return reduce(context);
    case Op::kGather:
    case Op::kAllGather:
      return gather(context);
    case Op::kScatter:
      return scatter(context);
    case Op::kReduceScatter:
      return reduce_scatter(context);
    case Op::kAllToAll:
      return all_to_all(context);
    case Op::kSend:
    case Op::kRecv:
      break;
  }
  LOCKSTEP_CHECK(false, "messages go through channels");
}

}  // namespace lockstep::inline v0::rounds
