#include "lockstep/plan/lm_cut.h"

#include <algorithm>

#include "lockstep/plan/pipeline_cut.h"

namespace lockstep::inline v0 {

std::vector<int> lm_cut(int64_t layers, double layer, double head, int chunks) {
  std::vector<double> costs{0};
  costs.insert(costs.end(), static_cast<size_t>(layers), layer);
  costs.push_back(0);
  costs.push_back(head);
  return cut_by_costs(costs, chunks);
}

std::vector<int64_t> layers_of_cut(const std::vector<int>& cut, int64_t layers) {
  std::vector<int64_t> found;
  int64_t first = 0;
  for (const int units : cut) {
    const int64_t end = first + units;
    // The first unit is none, and so are those behind the last layer.
    found.push_back(std::max<int64_t>(0, std::min(end, layers + 1) - std::max<int64_t>(first, 1)));
    first = end;
  }
  return found;
}

}  // namespace lockstep::inline v0
