#include "lockstep/plan/pipeline_cut.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace {

// Whether chunks that cost at most `most` each are enough, taken as long as they may be from the front.
bool suffices(std::span<const double> costs, int chunks, double most) {
  int needed = 1;
  double sum = 0;
  for (const double cost : costs) {
    if (cost > most) return false;
    sum += cost;
    if (sum <= most) continue;
    sum = cost;
    ++needed;
  }
  return needed <= chunks;
}

// Of the cuts into `chunks` of at most `most` each the one with the least sum of squares.
std::vector<int> evenest(std::span<const double> costs, int chunks, double most) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const size_t units = costs.size(), all = static_cast<size_t>(chunks);
  // Of the units from i on, in n chunks: the least sum, and how many units its first chunk has.
  std::vector<std::vector<double>> least(all + 1, std::vector<double>(units + 1, kNone));
  std::vector<std::vector<size_t>> taken(all + 1, std::vector<size_t>(units + 1, 0));
  least[0][units] = 0;
  for (size_t n = 1; n <= all; ++n) {
    for (size_t i = 0; i + n <= units; ++i) {
      double sum = 0;
      for (size_t end = i + 1; end + n - 1 <= units; ++end) {
        sum += costs[end - 1];
        if (sum > most) break;
        const double squares = sum * sum + least[n - 1][end];
        if (squares > least[n][i] || squares == kNone) continue;  // of equals the longest
        least[n][i] = squares;
        taken[n][i] = end - i;
      }
    }
  }
  std::vector<int> cut;
  for (size_t n = all, next = 0; n > 0; next += taken[n--][next])
    cut.push_back(static_cast<int>(taken[n][next]));
  return cut;
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
  // The dearest chunk is one of the sums of neighbours; added up as suffices() does. A cut into fewer chunks can be cut
  // further.
  std::vector<double> sums;
  for (size_t begin = 0; begin < costs.size(); ++begin) {
    double sum = 0;
    for (size_t end = begin; end < costs.size(); ++end) sums.push_back(sum += costs[end]);
  }
  std::sort(sums.begin(), sums.end());
  const auto least = std::partition_point(
      sums.begin(), sums.end(), [&](double most) { return !suffices(costs, chunks, most); });
  return evenest(costs, chunks, *least);
}

std::vector<int> first_units(const std::vector<int>& cut) {
  std::vector<int> first{0};
  for (const int count : cut) first.push_back(first.back() + count);
  return first;
}

}  // namespace lockstep::inline v0
