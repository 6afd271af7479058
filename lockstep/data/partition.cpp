#include "lockstep/data/partition.h"

#include <numeric>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/random.h"

namespace lockstep::inline v0::data {

DataPartitioner::DataPartitioner(int64_t size, const std::vector<double>& fractions, int64_t seed) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument("DataPartitioner: " + why);
  };
  if (size < 1)
    refuse("a data set of " + std::to_string(size) +
           " samples cannot be split; it needs at least 1");
  if (fractions.empty()) refuse("no fractions; give one for each part");

  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  PythonRandom(seed).shuffle(order);

  auto next = order.begin();
  for (size_t i = 0; i < fractions.size(); ++i) {
    const std::string part = "part " + std::to_string(i) + " (fraction " +
                             std::to_string(fractions[i]) + " of " + std::to_string(size) +
                             " samples)";
    if (!(fractions[i] > 0.0 && fractions[i] <= 1.0))
      refuse(part + ": a fraction must be above 0 and at most 1");
    const auto length = static_cast<int64_t>(fractions[i] * static_cast<double>(size));
    if (length == 0) {
      refuse(part +
             " would be empty: there are more parts (ranks) than samples for them; use fewer ranks "
             "or more data");
    }
    if (length > order.end() - next) refuse(part + ": the fractions add up to more than 1");
    parts_.emplace_back(next, next + length);
    next += length;
  }
}

DataPartitioner DataPartitioner::equal(int64_t size, int64_t parts, int64_t seed) {
  if (parts < 1)
    throw InvalidArgument("DataPartitioner: " + std::to_string(parts) +
                          " parts; there must be at least 1");
  if (parts > size && size > 0) {
    throw InvalidArgument("DataPartitioner: more parts (ranks) than samples: " +
                          std::to_string(parts) + " parts of " + std::to_string(size) +
                          " samples; use at most " + std::to_string(size) + " ranks");
  }
  return DataPartitioner(
      size, std::vector<double>(static_cast<size_t>(parts), 1.0 / static_cast<double>(parts)),
      seed);
}

const std::vector<int64_t>& DataPartitioner::use(int64_t part) const {
  if (part < 0 || part >= parts()) {
    throw InvalidArgument("DataPartitioner::use: part " + std::to_string(part) + " of " +
                          std::to_string(parts()) + "; parts count from 0");
  }
  return parts_[static_cast<size_t>(part)];
}

}  // namespace lockstep::inline v0::data
