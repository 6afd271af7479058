// Quantiles of samples. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep::inline v0 {

// Interpolates between two values: `q` 0 is the least, 0.5 the median, 1 the greatest.
// Requires: a value.
inline double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

// Requires: a value.
inline double median(std::vector<double> values) {
  return quantile(std::move(values), 0.5);
}

}  // namespace lockstep::inline v0
