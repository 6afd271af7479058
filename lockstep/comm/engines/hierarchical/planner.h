// Planner: makes the stages of one call. Included by stages.cpp and its parts only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/comm/engines/hierarchical/host_map.h"
#include "lockstep/comm/engines/hierarchical/stages.h"

namespace lockstep::inline v0::hierarchical {

class Planner {
 public:
  Planner(const Call& call, const HostMap& map, tcp::ScratchPool& pool, const StageOptions& options)
      : call_(call),
        map_(map),
        pool_(pool),
        options_(options),
        result_type_(call.dtype),
        element_(static_cast<int64_t>(c10::elementSize(call.dtype))) {
    // The ranks of a host then find that their calls differ, also where those have equal stages.
    call_.note.key ^= fingerprint(call) | 1;
  }

  Stages plan();

 private:
  // ---- the hosts ----
  bool leads() const { return map_.index() == 0; }
  bool alone() const { return map_.mate_count() == 1; }
  std::vector<int> leaders() const { return map_.column(0); }
  // In a rooted operation, the place of the rank that stands for its host: the root's place where
  // every host has that place, otherwise the first. The root's host may then need one more stage.
  int standing() const { return map_.equal ? map_.index_of[call_.root] : 0; }
  std::vector<int> standing_ranks() const { return map_.column(standing()); }
  bool at_root() const { return map_.host_of[call_.root] == map_.host(); }
  bool root_stands() const { return map_.index_of[call_.root] == standing(); }
  // The host of the root among `members`, which contain one rank of each host.
  int root_among(const std::vector<int>& members) const;
  // The ranks ordered by host, and by place.
  std::vector<int> by_host() const;
  std::vector<int> by_place() const;
  std::vector<std::vector<int>> columns() const;

  // ---- counts ----
  static int64_t sum(const std::vector<int64_t>& counts);
  // The counts of `ranks`, in their order.
  static std::vector<int64_t> pick(const std::vector<int64_t>& counts,
                                   const std::vector<int>& ranks);
  // The number of elements of each group.
  std::vector<int64_t> totals(const std::vector<std::vector<int>>& groups) const;
  static void set_counts(Call& c, std::vector<int64_t> counts);

  // ---- stages ----
  std::byte* scratch(int64_t elements) { return scratch_bytes(elements * element_); }
  std::byte* scratch_bytes(int64_t bytes);
  // A call like the current one, without its memory and counts.
  Call like(Op op) const;
  void inside(Call c) {
    stages_.list.push_back({.kind = Stage::Kind::kInside, .call = std::move(c)});
  }
  int start(Call c, std::vector<int> members);
  void await(int exchange) {
    stages_.list.push_back({.kind = Stage::Kind::kAwait, .exchange = exchange});
  }
  void work(std::function<void()> fn) {
    stages_.list.push_back({.kind = Stage::Kind::kWork, .work = std::move(fn)});
  }
  void copy(std::byte* to, const std::byte* from, int64_t elements);
  // Copies parts between rank order in `ordered` and the order of `ranks` in `grouped`.
  void regroup(const std::vector<int>& ranks, std::byte* grouped, std::byte* ordered,
               bool into_order);
  // Converts from the result's type to the type of sums; the reverse also applies what is left to
  // do to a sum.
  void widen(std::byte* to, const std::byte* from, int64_t count);
  void finish(std::byte* to, std::byte* from, int64_t count);

  // ---- operations ----
  void barrier();
  void broadcast();
  void all_gather();
  void all_gather_by_leaders();
  void directly();
  void prepare_reduction();
  void reduction();
  void reduce();
  void all_reduce();
  void all_reduce_by_leaders();
  void reduce_scatter();
  void reduce_scatter_by_leaders();

  // The all_reduce of a slice among one rank of each host, to its final values. It has three steps,
  // so that steps of other slices may lie between them. 16-bit floats are summed in float32, which
  // must travel; the rounded sums travel as 16 bits.
  struct Across {
    std::byte* from = nullptr;     // sums inside the host; room for padded() elements
    std::byte* sums = nullptr;     // may be `from`
    std::byte* own = nullptr;      // wide: room for part() sums
    std::byte* rounded = nullptr;  // .. and as many results
    std::byte* result = nullptr;   // room for padded() results; not wide: `sums`
    int64_t count = 0;
    bool halves = false;  // reduce_scatter and all_gather; else all_reduce
    int exchange = -1;
  };
  int64_t part(int64_t count) const { return (count + map_.host_count() - 1) / map_.host_count(); }
  int64_t padded(int64_t count) const { return part(count) * map_.host_count(); }
  // Whether the sums are so few that the other hosts are sent them in a message each.
  bool at_once(int64_t count) const;
  Across make_across(int64_t room);
  void begin(Across& across, const std::vector<int>& members);
  void turn(Across& across, const std::vector<int>& members);
  void end(const Across& across);

  Call call_;  // of a reduction: as it is summed
  const HostMap& map_;
  tcp::ScratchPool& pool_;
  const StageOptions& options_;
  const at::ScalarType result_type_;
  bool wide_ = false;    // sums have another type than results
  bool divide_ = false;  // sums are divided by the number of ranks
  int64_t element_;      // bytes of what call_ counts
  Stages stages_;
  int exchanges_ = 0;
};

}  // namespace lockstep::inline v0::hierarchical
