#include "lockstep/plan/machine/late_rank.h"

#include <cmath>

namespace lockstep::inline v0::plan {
namespace {

// The value that a standard normal one exceeds with this probability, at most a half: Abramowitz and Stegun, Handbook of
// Mathematical Functions, 26.2.23.
double normal_exceeded_with(double probability) {
  const double t = std::sqrt(-2 * std::log(probability));
  return t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                 (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
}

}  // namespace

double expected_largest(int ranks) {
  return ranks < 2 ? 0 : normal_exceeded_with(0.625 / (ranks + 0.25));
}

double late_time(double jitter, double seconds, double waits, int ranks) {
  return expected_largest(ranks) * jitter * std::sqrt(seconds * waits);
}

}  // namespace lockstep::inline v0::plan
