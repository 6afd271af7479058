#include "lockstep/cli/usage.h"

#include <algorithm>

#include "lockstep/core/text.h"

namespace lockstep::cli {
std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  std::string closest;
  for (const std::string& candidate : candidates) {
    const bool begun = word.size() > 4 && candidate.starts_with(word);
    const size_t distance = begun ? 1 : edit_distance(word, candidate);
    if (distance < best) {
      best = distance;
      closest = candidate;
    }
  }
  return closest.empty() ? "" : " (did you mean " + closest + "?)";
}

}  // namespace lockstep::cli
