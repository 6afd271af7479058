#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lockstep::inline v0::bench {

// Interpolates between two values: `q` 0 is the least, 0.5 the median, 1 the greatest. Pure.
// Requires: a value.
inline double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

}  // namespace lockstep::inline v0::bench
