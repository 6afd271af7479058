#include "lockstep/train/strategy.h"

#include <algorithm>

#include "lockstep/core/errors.h"

namespace lockstep {

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names{"ddp", "average", "ring", "naive-ring",
                                              "horovod"};  // in order of the enumerators
  return names;
}

Strategy parse_strategy(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  const auto& names = strategy_names();
  const auto found = std::find(names.begin(), names.end(), wanted);
  if (found == names.end()) {
    throw InvalidArgument("strategy '" + std::string(name) +
                          "' is unknown; choose ddp, average, ring, naive-ring or horovod");
  }
  return static_cast<Strategy>(found - names.begin());
}

AverageOptions average_options(Strategy strategy) {
  AverageOptions options;
  if (strategy == Strategy::kRing) options.algorithm = algorithms::AllReduce::kRing;
  if (strategy == Strategy::kNaiveRing) options.algorithm = algorithms::AllReduce::kNaiveRing;
  return options;
}

}  // namespace lockstep
