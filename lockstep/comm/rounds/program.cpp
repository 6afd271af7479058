#include "lockstep/comm/rounds/program.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "lockstep/comm/reduce_kernels.h"
#include "lockstep/core/check.h"

namespace lockstep::rounds {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// A stretch of bytes cut into chunks of `chunk` bytes, one a round.
struct Chunks {
  int64_t total;
  int64_t chunk;
  int64_t rounds() const { return ceil_div(total, chunk); }
  int64_t begin(int64_t round) const { return std::min(total, round * chunk); }
  int64_t size(int64_t round) const { return std::min(total, (round + 1) * chunk) - begin(round); }
};

// Byte offsets of parts that follow one another.
std::vector<int64_t> offsets(const std::vector<int64_t>& counts, int64_t element) {
  std::vector<int64_t> result(counts.size());
  int64_t at = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    result[i] = at;
    at += counts[i] * element;
  }
  return result;
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// What the builders share.
struct Context {
  const Call& call;
  int rank;
  const Region& region;
  int size = region.shape().size;
  int64_t element = static_cast<int64_t>(c10::elementSize(call.dtype));
  int64_t slot = region.shape().slot_bytes;
  int64_t lane = slot / size / static_cast<int64_t>(kLine) * static_cast<int64_t>(kLine);

  // Parts in counts, each cut into chunks of `chunk` bytes: the rounds that the longest needs.
  int64_t longest(const std::vector<int64_t>& counts, int64_t chunk) const {
    int64_t rounds = 1;
    for (const int64_t count : counts) rounds = std::max(rounds, ceil_div(count * element, chunk));
    return rounds;
  }
};

Program broadcast(const Context& c) {
  const Chunks chunks{c.call.count * c.element, c.slot};
  Program p;
  p.rounds = std::max<int64_t>(1, chunks.rounds());
  if (c.rank == c.call.root) {
    p.produce = [chunks, from = c.call.output](int64_t round, std::byte* payload) {
      copy_bytes(payload, from + chunks.begin(round), chunks.size(round));
    };
  } else {
    p.reads = Reads::kRoot;
    p.consume = [chunks, to = c.call.output, root = c.call.root, &region = c.region](int64_t round,
                                                                                     uint64_t at) {
      copy_bytes(to + chunks.begin(round), region.slot(root, at), chunks.size(round));
    };
  }
  return p;
}

// reduce and all_reduce: every reader adds up all ranks' slots in rank order.
Program reduce(const Context& c) {
  const Chunks chunks{c.call.count * c.element, c.slot};
  Program p;
  p.rounds = std::max<int64_t>(1, chunks.rounds());
  p.produce = [chunks, from = c.call.input](int64_t round, std::byte* payload) {
    copy_bytes(payload, from + chunks.begin(round), chunks.size(round));
  };
  if (c.call.op == Op::kAllReduce || c.rank == c.call.root) {
    p.reads = Reads::kEverybody;
    p.consume = [chunks, to = c.call.output, element = c.element, dtype = c.call.dtype,
                 op = c.call.reduce, inputs = std::vector<const std::byte*>(c.size),
                 &region = c.region](int64_t round, uint64_t at) mutable {
      const int64_t bytes = chunks.size(round);
      if (bytes == 0) return;
      for (size_t r = 0; r < inputs.size(); ++r) inputs[r] = region.slot(static_cast<int>(r), at);
      reduce_buffers(to + chunks.begin(round), inputs, bytes / element, dtype, op);
    };
  }
  return p;
}

// gather and all_gather.
Program gather(const Context& c) {
  Program p;
  p.rounds = c.longest(c.call.counts, c.slot);
  const Chunks mine{c.call.counts[c.rank] * c.element, c.slot};
  p.produce = [mine, from = c.call.input](int64_t round, std::byte* payload) {
    copy_bytes(payload, from + mine.begin(round), mine.size(round));
  };
  if (c.call.op == Op::kAllGather || c.rank == c.call.root) {
    p.reads = Reads::kEverybody;
    p.consume = [to = c.call.output, starts = offsets(c.call.counts, c.element),
                 counts = c.call.counts, element = c.element, slot = c.slot,
                 &region = c.region](int64_t round, uint64_t at) {
      for (size_t r = 0; r < counts.size(); ++r) {
        const Chunks part{counts[r] * element, slot};
        copy_bytes(to + starts[r] + part.begin(round), region.slot(static_cast<int>(r), at),
                   part.size(round));
      }
    };
  }
  return p;
}

// A rank's parts for all others, one a lane.
std::function<void(int64_t, std::byte*)> lanes(const Context& c) {
  return [from = c.call.input, starts = offsets(c.call.counts, c.element), counts = c.call.counts,
          element = c.element, lane = c.lane](int64_t round, std::byte* payload) {
    for (size_t d = 0; d < counts.size(); ++d) {
      const Chunks part{counts[d] * element, lane};
      copy_bytes(payload + static_cast<int64_t>(d) * lane, from + starts[d] + part.begin(round),
                 part.size(round));
    }
  };
}

Program scatter(const Context& c) {
  Program p;
  p.rounds = c.longest(c.call.counts, c.lane);
  if (c.rank == c.call.root) p.produce = lanes(c);
  p.reads = Reads::kRoot;
  const Chunks mine{c.call.counts[c.rank] * c.element, c.lane};
  p.consume = [mine, to = c.call.output, root = c.call.root, at_lane = c.rank * c.lane,
               &region = c.region](int64_t round, uint64_t at) {
    copy_bytes(to + mine.begin(round), region.slot(root, at) + at_lane, mine.size(round));
  };
  return p;
}

Program reduce_scatter(const Context& c) {
  Program p;
  p.rounds = c.longest(c.call.counts, c.lane);
  p.produce = lanes(c);
  p.reads = Reads::kEverybody;
  const Chunks mine{c.call.counts[c.rank] * c.element, c.lane};
  p.consume = [mine, to = c.call.output, element = c.element, dtype = c.call.dtype,
               op = c.call.reduce, at_lane = c.rank * c.lane,
               inputs = std::vector<const std::byte*>(c.size),
               &region = c.region](int64_t round, uint64_t at) mutable {
    const int64_t bytes = mine.size(round);
    if (bytes == 0) return;
    for (size_t r = 0; r < inputs.size(); ++r) {
      inputs[r] = region.slot(static_cast<int>(r), at) + at_lane;
    }
    reduce_buffers(to + mine.begin(round), inputs, bytes / element, dtype, op);
  };
  return p;
}

Program all_to_all(const Context& c) {
  Program p;
  p.rounds = c.longest(c.call.counts, c.lane);
  p.dynamic = true;
  p.produce = lanes(c);
  p.reads = Reads::kEverybody;
  p.consume = [to = c.call.output, starts = offsets(c.call.recv_counts, c.element),
               counts = c.call.recv_counts, element = c.element, lane = c.lane,
               at_lane = c.rank * c.lane, &region = c.region](int64_t round, uint64_t at) {
    for (size_t r = 0; r < counts.size(); ++r) {
      const Chunks part{counts[r] * element, lane};
      copy_bytes(to + starts[r] + part.begin(round), region.slot(static_cast<int>(r), at) + at_lane,
                 part.size(round));
    }
  };
  return p;
}

}  // namespace

Program make_program(const Call& call, int rank, const Region& region) {
  const Context context{call, rank, region};
  LOCKSTEP_CHECK(context.lane > 0, "a slot has a lane for every rank");
  switch (call.op) {
    case Op::kBarrier: {
      Program p;
      p.reads = Reads::kEverybody;
      return p;
    }
    case Op::kBroadcast:
      return broadcast(context);
    case Op::kReduce:
    case Op::kAllReduce:
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

}  // namespace lockstep::rounds
