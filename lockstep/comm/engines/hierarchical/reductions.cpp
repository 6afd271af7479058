// The stages of reductions.
#include <ATen/ops/from_blob.h>

#include <cstring>

#include "lockstep/comm/engines/hierarchical/planner.h"

namespace lockstep::inline v0::hierarchical {
namespace {

constexpr int64_t kMaxBlocks = 4096;
// Up to this many bytes, a rank sends all its sums at once, and one rank of a host sends those of
// all: a message costs more than its bytes.
constexpr int64_t kAtOnceBytes = 32 * 1024;

at::Tensor elements(const std::byte* data, int64_t count, at::ScalarType dtype) {
  return at::from_blob(const_cast<std::byte*>(data), {count}, at::TensorOptions().dtype(dtype));
}

}  // namespace

void Planner::widen(std::byte* to, const std::byte* from, int64_t count) {
  if (count == 0) return;
  work([to, from, count, wide = call_.dtype, narrow = result_type_] {
    elements(to, count, wide).copy_(elements(from, count, narrow));
  });
}

void Planner::finish(std::byte* to, std::byte* from, int64_t count) {
  if (count == 0 || (!divide_ && to == from)) return;
  work([to, from, count, wide = call_.dtype, narrow = result_type_, divide = divide_,
        ranks = map_.size()] {
    at::Tensor sums = elements(from, count, wide);
    if (divide) sums.div_(static_cast<double>(ranks));
    if (to != from) elements(to, count, narrow).copy_(sums);
  });
}

// From now on call_ describes how the reduction is summed.
void Planner::prepare_reduction() {
  if (call_.reduce == ReduceOp::kAvg) {
    call_.reduce = ReduceOp::kSum;
    divide_ = true;
  }
  call_.dtype = accumulation_type(result_type_);
  wide_ = call_.dtype != result_type_;
  element_ = static_cast<int64_t>(c10::elementSize(call_.dtype));
}

bool Planner::at_once(int64_t count) const {
  return count * element_ * (map_.host_count() - 1) <= kAtOnceBytes;
}

void Planner::reduction() {
  const bool one_a_host = map_.host_count() == map_.size();
  if (one_a_host && options_.carrier == nullptr) {  // which adds in the contract's order
    directly();
    return;
  }
  prepare_reduction();
  const bool by_places = map_.equal && map_.mate_count() > 1;
  if (call_.op == Op::kAllReduce) {
    const bool by_one = map_.host_count() > 1 && at_once(call_.count);
    by_places && !by_one ? all_reduce() : all_reduce_by_leaders();
    return;
  }
  const bool scatters = call_.op == Op::kReduceScatter;
  const int64_t given = scatters ? sum(call_.counts) : call_.count;
  const int64_t wanted = scatters                  ? call_.counts[map_.rank]
                         : map_.rank == call_.root ? call_.count
                                                   : 0;
  std::byte* result = call_.output;
  if (wide_) {
    std::byte* input = scratch(given);
    widen(input, call_.input, given);
    call_.input = input;
    call_.output = wanted > 0 ? scratch(wanted) : nullptr;
  }
  if (one_a_host)
    directly();
  else if (!scatters)
    reduce();
  else
    by_places ? reduce_scatter() : reduce_scatter_by_leaders();
  finish(result, call_.output, wanted);
}

void Planner::reduce() {
  const bool stands = map_.index() == standing();
  const bool is_root = map_.rank == call_.root;
  const std::byte* from = call_.input;
  if (!alone()) {
    Call c = like(Op::kReduce);
    c.root = standing();
    c.input = call_.input;
    c.count = call_.count;
    if (stands) {
      c.output = is_root ? call_.output : scratch(call_.count);
      from = c.output;
    }
    inside(std::move(c));
  }
  std::byte* whole =
      is_root ? call_.output : nullptr;  // on the rank that stands for the root's host
  if (stands) {
    const std::vector<int> members = standing_ranks();
    if (at_root() && !is_root) whole = scratch(call_.count);
    Call c = like(Op::kReduce);
    c.root = root_among(members);
    c.input = from;
    c.output = whole;
    c.count = call_.count;
    await(start(std::move(c), members));
  }
  if (!at_root() || root_stands()) return;
  Call c = like(Op::kScatter);
  c.root = standing();
  c.input = whole;
  std::vector<int64_t> counts(map_.mates().size(), 0);
  counts[static_cast<size_t>(map_.index_of[call_.root])] = call_.count;
  c.output = is_root ? call_.output : nullptr;
  set_counts(c, std::move(counts));
  if (!stands) c.input = nullptr;
  inside(std::move(c));
}

Planner::Across Planner::make_across(int64_t room) {
  Across across;
  across.from = across.sums = across.result = scratch(padded(room));
  if (wide_) {
    const auto narrow = static_cast<int64_t>(c10::elementSize(result_type_));
    across.own = scratch(part(room));
    across.rounded = scratch_bytes(part(room) * narrow);
    across.result = scratch_bytes(padded(room) * narrow);
  }
  return across;
}

void Planner::begin(Across& across, const std::vector<int>& members) {
  across.exchange = -1;
  if (across.count == 0) return;
  across.halves = wide_ && options_.scatters_well && !at_once(across.count);
  Call c = like(across.halves ? Op::kReduceScatter : Op::kAllReduce);
  c.input = across.from;
  if (across.halves) {
    const int64_t rest = padded(across.count) - across.count;
    work([end = across.from + across.count * element_,
          bytes = static_cast<size_t>(rest * element_)] { std::memset(end, 0, bytes); });
    c.output = across.own;
    set_counts(c, std::vector<int64_t>(members.size(), part(across.count)));
  } else {
    c.output = across.sums;
    c.count = across.count;
  }
  across.exchange = start(std::move(c), members);
}

void Planner::turn(Across& across, const std::vector<int>& members) {
  if (!across.halves || across.exchange < 0) return;
  await(across.exchange);
  finish(across.rounded, across.own, part(across.count));
  Call c = like(Op::kAllGather);
  c.dtype = result_type_;
  c.input = across.rounded;
  c.output = across.result;
  set_counts(c, std::vector<int64_t>(members.size(), part(across.count)));
  across.exchange = start(std::move(c), members);
}

void Planner::end(const Across& across) {
  if (across.exchange < 0) return;
  await(across.exchange);
  if (!across.halves) finish(across.result, across.sums, across.count);
}

void Planner::all_reduce() {
  const int64_t count = call_.count;
  const int mates = map_.mate_count();
  const auto width = static_cast<int64_t>(c10::elementSize(result_type_));
  const int64_t blocks = std::clamp<int64_t>(
      (count * element_ + options_.block_bytes - 1) / options_.block_bytes, 1, kMaxBlocks);
  const int64_t longest = (count + blocks - 1) / blocks;
  // The number of blocks in progress: one is summed inside the hosts, and one is in each half of
  // its way between them.
  const int64_t depth = std::min<int64_t>(blocks, wide_ ? 3 : 2);
  std::byte* widened = wide_ ? scratch(longest) : nullptr;
  struct Block {
    Across across;
    std::vector<int64_t> counts;
    int64_t begin = 0;
  };
  std::vector<Block> ring(static_cast<size_t>(depth));
  for (Block& block : ring) block.across = make_across(longest / mates + 1);
  const std::vector<int> members = map_.column(map_.index());

  for (int64_t b = 0; b < blocks + depth - 1; ++b) {
    if (b < blocks) {
      Block& block = ring[static_cast<size_t>(b % depth)];
      block.begin = count * b / blocks;
      const int64_t n = count * (b + 1) / blocks - block.begin;
      block.counts.clear();
      for (int i = 0; i < mates; ++i) block.counts.push_back(n * (i + 1) / mates - n * i / mates);
      Call c = like(Op::kReduceScatter);
      c.input = call_.input + block.begin * width;
      if (wide_) {
        widen(widened, c.input, n);
        c.input = widened;
      }
      c.output = block.across.from;
      set_counts(c, block.counts);
      inside(std::move(c));
      block.across.count = block.counts[static_cast<size_t>(map_.index())];
      begin(block.across, members);
    }
    // Where all sums travel at once there are no halves to exchange.
    const int64_t half = wide_ && depth == 3 ? b - 1 : b - depth + 1;
    if (half >= 0 && half < blocks) turn(ring[static_cast<size_t>(half % depth)].across, members);
    const int64_t last = b - depth + 1;
    if (last < 0) continue;
    const Block& block = ring[static_cast<size_t>(last % depth)];
    end(block.across);
    Call c = like(Op::kAllGather);
    c.dtype = result_type_;
    c.input = block.across.result;
    c.output = call_.output + block.begin * width;
    set_counts(c, block.counts);
    inside(std::move(c));
  }
}

void Planner::all_reduce_by_leaders() {
  const int64_t count = call_.count;
  const std::byte* given = call_.input;
  if (wide_) {
    std::byte* input = scratch(padded(count));
    widen(input, call_.input, count);
    given = input;
  }
  Across across;
  if (leads()) {
    if (wide_) {
      across = make_across(count);
    } else {
      across.from = across.sums = across.result = call_.output;
    }
    if (alone()) across.from = const_cast<std::byte*>(given);
  }
  if (!alone()) {
    Call c = like(Op::kReduce);
    c.root = 0;
    c.input = given;
    c.count = count;
    if (leads()) c.output = across.from;
    inside(std::move(c));
  }
  if (leads()) {
    across.count = count;
    const std::vector<int> members = leaders();
    begin(across, members);
    turn(across, members);
    end(across);
    if (across.result != call_.output) {
      work([to = call_.output, from = across.result,
            bytes = static_cast<size_t>(count) * c10::elementSize(result_type_)] {
        std::memcpy(to, from, bytes);
      });
    }
  }
  if (alone()) return;
  Call c = like(Op::kBroadcast);
  c.dtype = result_type_;
  c.root = 0;
  c.output = call_.output;
  c.count = count;
  inside(std::move(c));
}

void Planner::reduce_scatter() {
  const std::vector<int> members = map_.column(map_.index());
  std::byte* grouped = scratch(sum(call_.counts));
  regroup(by_place(), grouped, const_cast<std::byte*>(call_.input), false);
  std::byte* column = scratch(sum(pick(call_.counts, members)));
  Call c = like(Op::kReduceScatter);
  c.input = grouped;
  c.output = column;
  set_counts(c, totals(columns()));
  inside(std::move(c));

  Call between = like(Op::kReduceScatter);
  between.input = column;
  between.output = call_.output;
  set_counts(between, pick(call_.counts, members));
  await(start(std::move(between), members));
}

void Planner::reduce_scatter_by_leaders() {
  const int64_t total = sum(call_.counts);
  const std::byte* sums = call_.input;
  if (!alone()) {
    Call c = like(Op::kReduce);
    c.root = 0;
    c.input = call_.input;
    c.count = total;
    if (leads()) {
      c.output = scratch(total);
      sums = c.output;
    }
    inside(std::move(c));
  }
  const std::vector<int64_t> host_counts = totals(map_.hosts);
  std::byte* block = call_.output;
  if (leads()) {
    if (!map_.contiguous) {
      std::byte* grouped = scratch(total);
      regroup(by_host(), grouped, const_cast<std::byte*>(sums), false);
      sums = grouped;
    }
    if (!alone()) block = scratch(host_counts[static_cast<size_t>(map_.host())]);
    if (options_.carrier == nullptr) {
      Call c = like(Op::kReduceScatter);
      c.input = sums;
      c.output = block;
      set_counts(c, host_counts);
      await(start(std::move(c), leaders()));
    } else {
      // Some engines lack unequal parts.
      std::vector<int> exchanges;
      int64_t offset = 0;
      for (size_t h = 0; h < host_counts.size(); ++h) {
        if (host_counts[h] == 0) continue;
        Call c = like(Op::kReduce);
        c.root = static_cast<int>(h);
        c.input = sums + offset * element_;
        if (static_cast<int>(h) == map_.host()) c.output = block;
        c.count = host_counts[h];
        exchanges.push_back(start(std::move(c), leaders()));
        offset += host_counts[h];
      }
      for (const int exchange : exchanges) await(exchange);
    }
  }
  if (alone()) return;
  Call c = like(Op::kScatter);
  c.root = 0;
  if (leads()) c.input = block;
  c.output = call_.output;
  set_counts(c, pick(call_.counts, map_.mates()));
  inside(std::move(c));
}

}  // namespace lockstep::inline v0::hierarchical
