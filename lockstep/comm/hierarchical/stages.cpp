#include "lockstep/comm/hierarchical/stages.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lockstep::hierarchical {
namespace {

constexpr int64_t kMaxBlocks = 4096;

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

class Planner {
 public:
  Planner(const Call& call, const HostMap& map, tcp::ScratchPool& pool, int64_t block_bytes)
      : call_(call),
        map_(map),
        pool_(pool),
        element_(static_cast<int64_t>(c10::elementSize(call.dtype))),
        block_bytes_(block_bytes) {}

  Stages plan();

 private:
  bool leads() const { return map_.index() == 0; }
  bool alone() const { return map_.mate_count() == 1; }

  std::byte* scratch(int64_t elements) {
    stages_.scratch.push_back(pool_.take(static_cast<size_t>(elements * element_)));
    return stages_.scratch.back().memory.get();
  }
  // A call like the one at hand, without its memory and counts.
  Call like(Op op) const {
    Call c = call_;
    c.op = op;
    c.record = nullptr;  // that of the whole
    c.root = -1;
    c.input = nullptr;
    c.output = nullptr;
    c.count = 0;
    c.counts.clear();
    c.recv_counts.clear();
    c.uniform = false;
    return c;
  }
  static void set_counts(Call& c, std::vector<int64_t> counts) {
    c.uniform = std::all_of(counts.begin(), counts.end(),
                            [&](int64_t count) { return count == counts.front(); });
    c.counts = std::move(counts);
  }
  void inside(Call c) {
    stages_.list.push_back({.kind = Stage::Kind::kInside, .call = std::move(c)});
  }
  int start(Call c, std::vector<int> members) {
    stages_.list.push_back({.kind = Stage::Kind::kStart,
                            .call = std::move(c),
                            .members = std::move(members),
                            .exchange = exchanges_});
    return exchanges_++;
  }
  void await(int exchange) {
    stages_.list.push_back({.kind = Stage::Kind::kAwait, .exchange = exchange});
  }
  void work(std::function<void()> fn) {
    stages_.list.push_back({.kind = Stage::Kind::kWork, .work = std::move(fn)});
  }
  void copy(std::byte* to, const std::byte* from, int64_t elements) {
    if (to == from || elements == 0) return;
    work([to, from, bytes = static_cast<size_t>(elements * element_)] {
      std::memcpy(to, from, bytes);
    });
  }

  // The part of `counts` that the ranks have, in their order.
  static std::vector<int64_t> pick(const std::vector<int64_t>& counts,
                                   const std::vector<int>& ranks) {
    std::vector<int64_t> picked;
    for (const int r : ranks) picked.push_back(counts[r]);
    return picked;
  }
  // Copies parts between rank order in `ordered` and the order of `ranks` in `grouped`.
  void regroup(const std::vector<int>& ranks, std::byte* grouped, std::byte* ordered,
               bool into_order) {
    struct Move {
      int64_t grouped, ordered, bytes;
    };
    std::vector<int64_t> begin(call_.counts.size() + 1, 0);
    for (size_t r = 0; r < call_.counts.size(); ++r)
      begin[r + 1] = begin[r] + call_.counts[r] * element_;
    std::vector<Move> moves;
    int64_t at = 0;
    for (const int r : ranks) {
      const int64_t bytes = call_.counts[r] * element_;
      if (bytes > 0) moves.push_back({at, begin[r], bytes});
      at += bytes;
    }
    work([moves = std::move(moves), grouped, ordered, into_order] {
      for (const Move& move : moves) {
        std::byte* g = grouped + move.grouped;
        std::byte* o = ordered + move.ordered;
        std::memcpy(into_order ? o : g, into_order ? g : o, static_cast<size_t>(move.bytes));
      }
    });
  }
  // Ranks host by host, and place by place.
  std::vector<int> by_host() const {
    std::vector<int> ranks;
    for (const std::vector<int>& host : map_.hosts)
      ranks.insert(ranks.end(), host.begin(), host.end());
    return ranks;
  }
  std::vector<int> by_place() const {
    std::vector<int> ranks;
    for (int i = 0; i < map_.mate_count(); ++i) {
      const std::vector<int> column = map_.column(i);
      ranks.insert(ranks.end(), column.begin(), column.end());
    }
    return ranks;
  }
  // Elements of each host's ranks, or of each place's, in the order of `groups`.
  std::vector<int64_t> totals(const std::vector<std::vector<int>>& groups) const {
    std::vector<int64_t> all;
    for (const std::vector<int>& ranks : groups) all.push_back(sum(pick(call_.counts, ranks)));
    return all;
  }
  std::vector<std::vector<int>> columns() const {
    std::vector<std::vector<int>> all;
    for (int i = 0; i < map_.mate_count(); ++i) all.push_back(map_.column(i));
    return all;
  }
  std::vector<int> leaders() const { return map_.representatives(map_.hosts[0].front()); }

  void barrier();
  void broadcast();
  void reduce();
  void all_reduce();
  void all_reduce_by_leaders();
  void all_gather();
  void all_gather_by_leaders();
  void reduce_scatter();
  void reduce_scatter_by_leaders();
  void directly();

  const Call& call_;
  const HostMap& map_;
  tcp::ScratchPool& pool_;
  const int64_t element_;
  const int64_t block_bytes_;
  Stages stages_;
  int exchanges_ = 0;
};

void Planner::barrier() {
  if (!alone()) inside(like(Op::kBarrier));
  if (leads()) await(start(like(Op::kBarrier), leaders()));
  if (!alone()) inside(like(Op::kBarrier));
}

void Planner::broadcast() {
  const std::vector<int> members = map_.representatives(call_.root);
  const auto mine = std::find(members.begin(), members.end(), map_.rank);
  if (mine != members.end()) {
    Call c = like(Op::kBroadcast);
    c.root =
        static_cast<int>(std::find(members.begin(), members.end(), call_.root) - members.begin());
    c.output = call_.output;
    c.count = call_.count;
    await(start(std::move(c), members));
  }
  if (alone()) return;
  Call c = like(Op::kBroadcast);
  c.root = map_.host_of[call_.root] == map_.host() ? map_.index_of[call_.root] : 0;
  c.output = call_.output;
  c.count = call_.count;
  inside(std::move(c));
}

void Planner::reduce() {
  const std::vector<int> members = map_.representatives(call_.root);
  const bool at_root = map_.host_of[call_.root] == map_.host();
  const int to = at_root ? map_.index_of[call_.root] : 0;
  const bool stands = to == map_.index();
  const std::byte* from = call_.input;
  if (!alone()) {
    Call c = like(Op::kReduce);
    c.root = to;
    c.input = call_.input;
    c.count = call_.count;
    if (stands) {
      c.output = at_root ? call_.output : scratch(call_.count);
      from = c.output;
    }
    inside(std::move(c));
  }
  if (!stands) return;
  Call c = like(Op::kReduce);
  c.root =
      static_cast<int>(std::find(members.begin(), members.end(), call_.root) - members.begin());
  c.input = from;
  if (at_root) c.output = call_.output;
  c.count = call_.count;
  await(start(std::move(c), members));
}

void Planner::all_reduce() {
  const int64_t count = call_.count;
  const int mates = map_.mate_count();
  const int64_t blocks =
      std::clamp<int64_t>((count * element_ + block_bytes_ - 1) / block_bytes_, 1, kMaxBlocks);
  struct Block {
    std::byte* slice = nullptr;
    std::vector<int64_t> counts;
    int64_t begin = 0;
    int exchange = 0;
  };
  const int64_t largest = (count + blocks - 1) / blocks / mates + 1;
  std::byte* slices[2] = {scratch(largest), blocks > 1 ? scratch(largest) : nullptr};
  const std::vector<int> members = map_.column(map_.index());

  const auto begin_block = [&](int64_t b) {
    Block block;
    block.slice = slices[b % 2];
    block.begin = count * b / blocks;
    const int64_t n = count * (b + 1) / blocks - block.begin;
    for (int i = 0; i < mates; ++i) block.counts.push_back(n * (i + 1) / mates - n * i / mates);
    Call c = like(Op::kReduceScatter);
    c.input = call_.input + block.begin * element_;
    c.output = block.slice;
    set_counts(c, block.counts);
    inside(std::move(c));
    Call between = like(Op::kAllReduce);
    between.input = block.slice;
    between.output = block.slice;
    between.count = block.counts[map_.index()];
    block.exchange = start(std::move(between), members);
    return block;
  };
  const auto end_block = [&](const Block& block) {
    await(block.exchange);
    Call c = like(Op::kAllGather);
    c.input = block.slice;
    c.output = call_.output + block.begin * element_;
    set_counts(c, block.counts);
    inside(std::move(c));
  };
  Block before = begin_block(0);
  for (int64_t b = 1; b < blocks; ++b) {
    Block next = begin_block(b);
    end_block(before);
    before = std::move(next);
  }
  end_block(before);
}

void Planner::all_reduce_by_leaders() {
  if (!alone()) {
    Call c = like(Op::kReduce);
    c.root = 0;
    c.input = call_.input;
    c.count = call_.count;
    if (leads()) c.output = call_.output;
    inside(std::move(c));
  }
  if (leads()) {
    Call c = like(Op::kAllReduce);
    c.input = alone() ? call_.input : call_.output;
    c.output = call_.output;
    c.count = call_.count;
    await(start(std::move(c), leaders()));
  }
  if (alone()) return;
  Call c = like(Op::kBroadcast);
  c.root = 0;
  c.output = call_.output;
  c.count = call_.count;
  inside(std::move(c));
}

void Planner::all_gather() {
  const std::vector<int> members = map_.column(map_.index());
  std::byte* column = scratch(sum(pick(call_.counts, members)));
  Call between = like(Op::kAllGather);
  between.input = call_.input;
  between.output = column;
  set_counts(between, pick(call_.counts, members));
  await(start(std::move(between), members));

  std::byte* grouped = scratch(sum(call_.counts));
  Call c = like(Op::kAllGather);
  c.input = column;
  c.output = grouped;
  set_counts(c, totals(columns()));
  inside(std::move(c));
  regroup(by_place(), grouped, call_.output, true);
}

void Planner::all_gather_by_leaders() {
  const int64_t total = sum(call_.counts);
  std::byte* grouped = map_.contiguous ? call_.output : scratch(total);
  const std::vector<int64_t> host_counts = totals(map_.hosts);
  std::byte* mine = grouped + std::accumulate(host_counts.begin(),
                                              host_counts.begin() + map_.host(), int64_t{0}) *
                                  element_;
  if (alone()) {
    copy(mine, call_.input, call_.counts[map_.rank]);
  } else {
    Call c = like(Op::kGather);
    c.root = 0;
    c.input = call_.input;
    if (leads()) c.output = mine;
    set_counts(c, pick(call_.counts, map_.mates()));
    inside(std::move(c));
  }
  if (leads()) {
    // Leaders ascend as the hosts do.
    Call c = like(Op::kAllGather);
    c.input = mine;
    c.output = grouped;
    set_counts(c, host_counts);
    await(start(std::move(c), leaders()));
  }
  if (!alone()) {
    Call c = like(Op::kBroadcast);
    c.root = 0;
    c.output = grouped;
    c.count = total;
    inside(std::move(c));
  }
  if (!map_.contiguous) regroup(by_host(), grouped, call_.output, true);
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
    if (!alone()) block = scratch(host_counts[map_.host()]);
    Call c = like(Op::kReduceScatter);
    c.input = sums;
    c.output = block;
    set_counts(c, host_counts);
    await(start(std::move(c), leaders()));
  }
  if (alone()) return;
  Call c = like(Op::kScatter);
  c.root = 0;
  if (leads()) c.input = block;
  c.output = call_.output;
  set_counts(c, pick(call_.counts, map_.mates()));
  inside(std::move(c));
}

void Planner::directly() {
  std::vector<int> everybody(static_cast<size_t>(map_.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  await(start(call_, std::move(everybody)));
}

Stages Planner::plan() {
  const bool by_places = map_.equal && map_.mate_count() > 1;
  const bool moves_nothing = call_.op != Op::kBarrier && call_.op != Op::kAllToAll &&
                             call_.count == 0 && sum(call_.counts) == 0;
  if (moves_nothing) return std::move(stages_);
  if (map_.host_count() == map_.size()) {
    directly();
    return std::move(stages_);
  }
  switch (call_.op) {
    case Op::kBarrier:
      barrier();
      break;
    case Op::kBroadcast:
      broadcast();
      break;
    case Op::kReduce:
      reduce();
      break;
    case Op::kAllReduce:
      by_places ? all_reduce() : all_reduce_by_leaders();
      break;
    case Op::kAllGather:
      by_places ? all_gather() : all_gather_by_leaders();
      break;
    case Op::kReduceScatter:
      by_places ? reduce_scatter() : reduce_scatter_by_leaders();
      break;
    default:
      directly();
  }
  return std::move(stages_);
}

}  // namespace

Stages make_stages(const Call& call, const HostMap& map, tcp::ScratchPool& pool,
                   int64_t block_bytes) {
  return Planner(call, map, pool, block_bytes).plan();
}

}  // namespace lockstep::hierarchical
