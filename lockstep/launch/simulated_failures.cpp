#include "lockstep/launch/simulated_failures.h"

#include <algorithm>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/launch/words_at_commas.h"

namespace lockstep::inline v0::launch {
FailureDrill parse_failure_drill(const std::string& text) {
  FailureDrill drill;
  for (const std::string& part : words_at_commas(text)) {
    const std::string value = part.substr(std::min(part.size(), part.find('=') + 1));
    if (part.starts_with("every=")) {
      const auto seconds = parse_double(value);
      if (!seconds || !(*seconds >= 0.001 && *seconds <= 1e6))
        throw InvalidArgument("'" + text + "': every=" + value + ": expected seconds above 0");
      drill.every = std::chrono::milliseconds(static_cast<int64_t>(*seconds * 1000));
    } else if (part.starts_with("seed=")) {
      const auto seed = parse_int(value, 0);
      if (!seed)
        throw InvalidArgument("'" + text + "': seed=" + value + ": expected a number from 0");
      drill.seed = static_cast<uint64_t>(*seed);
    } else {
      throw InvalidArgument("'" + text + "': expected every=SECONDS[,seed=N]");
    }
  }
  if (drill.every.count() == 0)
    throw InvalidArgument("'" + text + "': expected every=SECONDS[,seed=N]");
  return drill;
}

SimulatedFailures::SimulatedFailures(const FailureDrill& drill, Time now)
    : every_(drill.every), random_(drill.seed) {
  set_next(now);
}

std::optional<int> SimulatedFailures::take(const std::vector<int>& running, Time now) {
  if (now < next_) return std::nullopt;
  set_next(now);
  const uint64_t drawn = random_();
  if (running.empty()) return std::nullopt;
  return running[static_cast<size_t>(drawn % running.size())];
}

// Plain arithmetic, which gives the same values with every standard library.
void SimulatedFailures::set_next(Time from) {
  const double part = static_cast<double>(random_() >> 11) * 0x1p-53;
  next_ = from + std::chrono::milliseconds(
                     static_cast<int64_t>(static_cast<double>(every_.count()) * (0.5 + part)));
}

}  // namespace lockstep::inline v0::launch
