#include "lockstep/plan/pipeline_cut.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep {
namespace {

// Chunks that cost at most `most` each, taken as long as they may be from the front, but so that a unit is
// left for each of the others. Empty: there are more than `chunks`.
std::vector<int> greedy(std::span<const double> costs, int chunks, double most) {
  std::vector<int> cut;
  size_t next = 0;
  for (int left = chunks; left > 0; --left) {
    double sum = 0;
    int taken = 0;
    while (next < costs.size() && costs.size() - next >= static_cast<size_t>(left) &&
           (taken == 0 || sum + costs[next] <= most)) {
      sum += costs[next++];
      ++taken;
    }
    if (sum > most) return {};
    cut.push_back(taken);
  }
  return next == costs.size() ? cut : std::vector<int>();
}

}  // namespace

std::vector<int> cut_by_counts(int units, const std::vector<int>& counts) {
  const int sum = std::accumulate(counts.begin(), counts.end(), 0);
  if (counts.empty() || sum != units ||
      std::any_of(counts.begin(), counts.end(), [](int count) { return count < 1; }))
    throw InvalidArgument("pipeline cut " + joined(counts) + ": " + std::to_string(units) +
                          " units; give how many each chunk has, at least 1");
  return counts;
}

std::vector<int> cut_by_names(const std::vector<std::string>& units,
                              const std::vector<std::string>& first) {
  std::vector<int> cut;
  size_t begin = 0;
  for (const std::string& name : first) {
    const auto found = std::find(units.begin(), units.end(), name);
    if (found == units.end()) {
      const std::string near = nearest_name(name, units);
      throw InvalidArgument("pipeline cut: the model has no unit '" + name + "'" +
                            (near.empty() ? "" : " (did you mean " + near + "?)") +
                            "; its units are " + joined(units));
    }
    const auto at = static_cast<size_t>(found - units.begin());
    if (at <= begin)
      throw InvalidArgument("pipeline cut: '" + name +
                            "' does not stand behind the unit with which the chunk before begins; "
                            "name them in the model's order, the first one not at all");
    cut.push_back(static_cast<int>(at - begin));
    begin = at;
  }
  cut.push_back(static_cast<int>(units.size() - begin));
  return cut_by_counts(static_cast<int>(units.size()), cut);
}

std::vector<int> cut_by_costs(std::span<const double> costs, int chunks) {
  if (chunks < 1 || costs.size() < static_cast<size_t>(chunks))
    throw InvalidArgument("pipeline cut: " + std::to_string(costs.size()) + " units do not make " +
                          std::to_string(chunks) + " chunks of at least one");
  if (std::any_of(costs.begin(), costs.end(),
                  [](double cost) { return !std::isfinite(cost) || cost < 0; }))
    throw InvalidArgument("pipeline cut: give costs that are finite and not negative");
  // The dearest chunk is one of the sums of neighbours; added up as greedy() does.
  std::vector<double> sums;
  for (size_t begin = 0; begin < costs.size(); ++begin) {
    double sum = 0;
    for (size_t end = begin; end < costs.size(); ++end) sums.push_back(sum += costs[end]);
  }
  std::sort(sums.begin(), sums.end());
  const auto least = std::partition_point(
      sums.begin(), sums.end(), [&](double most) { return greedy(costs, chunks, most).empty(); });
  return greedy(costs, chunks, *least);
}

std::vector<int> first_units(const std::vector<int>& cut) {
  std::vector<int> first{0};
  for (const int count : cut) first.push_back(first.back() + count);
  return first;
}

}  // namespace lockstep
