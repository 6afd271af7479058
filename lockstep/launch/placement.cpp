#include "lockstep/launch/placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {

std::vector<int> cpu_share(const std::vector<int>& cpus, int ranks, int rank) {
  const auto count = static_cast<int>(cpus.size());
  if (ranks <= 1 || count < ranks) return {};
  // The first count % ranks ranks get one more.
  const int base = count / ranks, extra = count % ranks;
  const int begin = rank * base + std::min(rank, extra);
  const int size = base + (rank < extra ? 1 : 0);
  return {cpus.begin() + begin, cpus.begin() + begin + size};
}

int threads_per_rank(int cpus, int ranks) {
  return std::max(1, cpus / std::max(1, ranks));
}

namespace {

int unit_of(const Processor& processor, CpuUnit unit) {
  switch (unit) {
    case CpuUnit::kHwthread:
      return processor.cpu;
    case CpuUnit::kCore:
      return processor.core;
    case CpuUnit::kNuma:
      return processor.numa;
    case CpuUnit::kSocket:
      break;
  }
  return processor.socket;
}

// The pieces that ranks are made of, cores or hardware threads, each with one of its processors;
// in the order of sockets, NUMA nodes and cores.
std::vector<Processor> pieces_of(std::vector<Processor> processors, CpuUnit piece) {
  std::sort(processors.begin(), processors.end(), [](const Processor& a, const Processor& b) {
    return std::tie(a.socket, a.numa, a.core, a.cpu) < std::tie(b.socket, b.numa, b.core, b.cpu);
  });
  std::vector<Processor> pieces;
  std::set<int> seen;
  for (const Processor& processor : processors) {
    if (seen.insert(unit_of(processor, piece)).second) pieces.push_back(processor);
  }
  return pieces;
}

// Groups of pieces, in the order in which ranks take them. `units_alone`: each piece is a whole
// unit.
std::vector<std::vector<Processor>> groups_of(const std::vector<Processor>& pieces,
                                              const Binding& binding, bool units_alone) {
  const bool by_turns = binding.by == CpuUnit::kNuma || binding.by == CpuUnit::kSocket;
  std::map<int, std::vector<Processor>> units;
  for (const Processor& piece : pieces)
    units[by_turns ? unit_of(piece, binding.by) : 0].push_back(piece);
  const auto size = static_cast<size_t>(std::max(1, binding.cores));
  const auto row = static_cast<size_t>(std::max(1, binding.in_a_row));
  std::vector<std::vector<Processor>> groups;
  for (size_t begin = 0;; begin += row * size) {
    const size_t before = groups.size();
    for (const auto& [unit, of_unit] : units) {
      for (size_t at = begin; at < begin + row * size; at += size) {
        // A whole unit, which is one piece here, is given to each rank of the row.
        const size_t from = units_alone ? 0 : at;
        if (from + size > of_unit.size() || (units_alone && begin > 0)) break;
        const auto first = of_unit.begin() + static_cast<std::ptrdiff_t>(from);
        groups.emplace_back(first, first + static_cast<std::ptrdiff_t>(size));
      }
    }
    if (groups.size() == before) return groups;
  }
}

std::string ranks_text(int ranks) {
  return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
}

}  // namespace

std::vector<RankCpus> bound_cpus(const std::vector<Processor>& allowed, const Binding& binding,
                                 int ranks) {
  const CpuUnit piece = binding.by == CpuUnit::kHwthread || binding.to == CpuUnit::kHwthread
                            ? CpuUnit::kHwthread
                            : CpuUnit::kCore;
  const std::vector<Processor> pieces = pieces_of(allowed, piece);
  const bool whole_units = binding.to == CpuUnit::kNuma || binding.to == CpuUnit::kSocket;
  // Whole units by turns: each counts once, however many cores of it are allowed.
  const bool units_alone = whole_units && binding.by == binding.to && binding.cores <= 1;
  const auto groups =
      groups_of(units_alone ? pieces_of(allowed, binding.to) : pieces, binding, units_alone);
  // Ranks that are bound to sockets share them anyway.
  const bool may_share = binding.overload || (whole_units && binding.cores <= 1);
  if (groups.empty() || (static_cast<int>(groups.size()) < ranks && !may_share)) {
    const std::string what = piece == CpuUnit::kCore ? "core" : "hardware thread";
    const int has = static_cast<int>(pieces.size());
    throw InvalidArgument(ranks_text(ranks) + " with " + std::to_string(binding.cores) + " " +
                          what + (binding.cores == 1 ? "" : "s") +
                          (ranks == 1 ? " does" : " each do") +
                          " not fit this host, which allows " + std::to_string(has) +
                          (has == 1 ? " " + what : " " + what + "s") +
                          "; start fewer ranks, or leave --bind-to and --map-by out");
  }
  std::vector<RankCpus> result(static_cast<size_t>(ranks));
  std::map<std::vector<int>, int> sharing;  // ranks on the same processors
  for (size_t rank = 0; rank < result.size(); ++rank) {
    std::set<int> units, cores;
    for (const Processor& own : groups[rank % groups.size()])
      units.insert(unit_of(own, binding.to));
    for (const Processor& processor : allowed) {
      if (!units.contains(unit_of(processor, binding.to))) continue;
      result[rank].cpus.push_back(processor.cpu);
      cores.insert(unit_of(processor, piece));
    }
    std::sort(result[rank].cpus.begin(), result[rank].cpus.end());
    result[rank].threads = static_cast<int>(cores.size());
    ++sharing[result[rank].cpus];
  }
  for (RankCpus& one : result) one.threads = std::max(1, one.threads / sharing[one.cpus]);
  return result;
}

int unit_count(const std::vector<Processor>& processors, CpuUnit unit) {
  std::set<int> units;
  for (const Processor& processor : processors) units.insert(unit_of(processor, unit));
  return static_cast<int>(units.size());
}

std::string cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < cpus.size(); begin = end) {
    for (end = begin + 1; end < cpus.size() && cpus[end] == cpus[end - 1] + 1; ++end) {
    }
    text += (text.empty() ? "" : ",") + std::to_string(cpus[begin]);
    if (end - begin > 1) text += "-" + std::to_string(cpus[end - 1]);
  }
  return text;
}

}  // namespace lockstep::inline v0::launch
