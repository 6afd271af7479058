// Stages: the common helpers, and the operations that only move data. The reductions are in
// reductions.cpp.
#include "lockstep/comm/engines/hierarchical/stages.h"

#include <c10/core/ScalarType.h>

#include <cstring>
#include <numeric>

#include "lockstep/comm/engines/hierarchical/planner.h"

namespace lockstep::inline v0::hierarchical {

int Planner::root_among(const std::vector<int>& members) const {
  const auto it = std::find_if(members.begin(), members.end(),
                               [&](int r) { return map_.host_of[r] == map_.host_of[call_.root]; });
  return static_cast<int>(it - members.begin());
}

std::vector<int> Planner::by_host() const {
  std::vector<int> ranks;
  for (const std::vector<int>& host : map_.hosts)
    ranks.insert(ranks.end(), host.begin(), host.end());
  return ranks;
}

std::vector<int> Planner::by_place() const {
  std::vector<int> ranks;
  for (const std::vector<int>& column : columns())
    ranks.insert(ranks.end(), column.begin(), column.end());
  return ranks;
}

std::vector<std::vector<int>> Planner::columns() const {
  std::vector<std::vector<int>> all;
  for (int i = 0; i < map_.mate_count(); ++i) all.push_back(map_.column(i));
  return all;
}

int64_t Planner::sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::vector<int64_t> Planner::pick(const std::vector<int64_t>& counts,
                                   const std::vector<int>& ranks) {
  std::vector<int64_t> picked;
  for (const int r : ranks) picked.push_back(counts[r]);
  return picked;
}

std::vector<int64_t> Planner::totals(const std::vector<std::vector<int>>& groups) const {
  std::vector<int64_t> all;
  for (const std::vector<int>& ranks : groups) all.push_back(sum(pick(call_.counts, ranks)));
  return all;
}

void Planner::set_counts(Call& c, std::vector<int64_t> counts) {
  c.uniform = std::all_of(counts.begin(), counts.end(),
                          [&](int64_t count) { return count == counts.front(); });
  c.counts = std::move(counts);
}

std::byte* Planner::scratch_bytes(int64_t bytes) {
  stages_.scratch.push_back(pool_.take(static_cast<size_t>(bytes)));
  return stages_.scratch.back().memory.get();
}

Call Planner::like(Op op) const {
  Call c = call_;
  c.op = op;
  c.record = nullptr;  // the whole call has the record
  c.root = -1;
  c.input = nullptr;
  c.output = nullptr;
  c.count = 0;
  c.counts.clear();
  c.recv_counts.clear();
  c.uniform = false;
  return c;
}

int Planner::start(Call c, std::vector<int> members) {
  const bool moves = !is_reduction(c.op) && c.op != Op::kBarrier;
  if (moves && options_.carrier != nullptr && (options_.carrier->move_dtypes & bit(c.dtype)) == 0) {
    const auto width = static_cast<int64_t>(c10::elementSize(c.dtype));
    c.dtype = at::kByte;
    c.count *= width;
    for (int64_t& count : c.counts) count *= width;
    for (int64_t& count : c.recv_counts) count *= width;
  }
  stages_.list.push_back({.kind = Stage::Kind::kStart,
                          .call = std::move(c),
                          .members = std::move(members),
                          .exchange = exchanges_});
  return exchanges_++;
}

void Planner::copy(std::byte* to, const std::byte* from, int64_t elements) {
  if (to == from || elements == 0) return;
  work([to, from, bytes = static_cast<size_t>(elements * element_)] {
    std::memcpy(to, from, bytes);
  });
}

void Planner::regroup(const std::vector<int>& ranks, std::byte* grouped, std::byte* ordered,
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

void Planner::barrier() {
  if (!alone()) inside(like(Op::kBarrier));
  if (leads()) await(start(like(Op::kBarrier), leaders()));
  if (!alone()) inside(like(Op::kBarrier));
}

void Planner::broadcast() {
  const auto among_mates = [this](int root) {
    if (alone()) return;
    Call c = like(Op::kBroadcast);
    c.root = root;
    c.output = call_.output;
    c.count = call_.count;
    inside(std::move(c));
  };
  const bool first_inside = at_root() && !root_stands();
  if (first_inside) among_mates(map_.index_of[call_.root]);
  if (map_.index() == standing()) {
    const std::vector<int> members = standing_ranks();
    Call c = like(Op::kBroadcast);
    c.root = root_among(members);
    c.output = call_.output;
    c.count = call_.count;
    await(start(std::move(c), members));
  }
  if (!first_inside) among_mates(standing());
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
  std::vector<std::byte*> blocks;
  int64_t offset = 0;
  for (const int64_t count : host_counts) {
    blocks.push_back(grouped + offset * element_);
    offset += count;
  }
  std::byte* mine = blocks[static_cast<size_t>(map_.host())];
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
  if (leads() && options_.carrier == nullptr) {
    // Leaders are in ascending order, as the hosts are.
    Call c = like(Op::kAllGather);
    c.input = mine;
    c.output = grouped;
    set_counts(c, host_counts);
    await(start(std::move(c), leaders()));
  } else if (leads()) {
    // Some engines lack unequal parts.
    std::vector<int> exchanges;
    for (size_t h = 0; h < blocks.size(); ++h) {
      if (host_counts[h] == 0) continue;
      Call c = like(Op::kBroadcast);
      c.root = static_cast<int>(h);
      c.output = blocks[h];
      c.count = host_counts[h];
      exchanges.push_back(start(std::move(c), leaders()));
    }
    for (const int exchange : exchanges) await(exchange);
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

void Planner::directly() {
  std::vector<int> all_ranks(static_cast<size_t>(map_.size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  await(start(call_, std::move(all_ranks)));
}

Stages Planner::plan() {
  const bool by_places = map_.equal && map_.mate_count() > 1;
  const bool moves_nothing = call_.op != Op::kBarrier && call_.op != Op::kAllToAll &&
                             call_.count == 0 && sum(call_.counts) == 0;
  if (moves_nothing) return std::move(stages_);
  if (is_reduction(call_.op)) {
    reduction();
    return std::move(stages_);
  }
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
    case Op::kAllGather:
      by_places ? all_gather() : all_gather_by_leaders();
      break;
    default:
      directly();
  }
  return std::move(stages_);
}

Stages make_stages(const Call& call, const HostMap& map, tcp::ScratchPool& pool,
                   const StageOptions& options) {
  return Planner(call, map, pool, options).plan();
}

}  // namespace lockstep::inline v0::hierarchical
