#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lockstep/plan/search/search.h"

namespace lockstep::inline v0::plan {
namespace {

// A part of a step as a reason.
struct Reason {
  const char* words;
  double best, other;
};

std::vector<Reason> reasons_of(const TimeParts& best, const TimeParts& other) {
  return {{"slower products", best.matrices + best.head, other.matrices + other.head},
          {"slower attention", best.attention, other.attention},
          {"more memory traffic", best.elementwise, other.elementwise},
          {"recomputation", best.recomputation, other.recomputation},
          {"exposed collectives of tensor", best.tensor, other.tensor},
          {"exposed exchange of context", best.context, other.context},
          {"exposed exchange of experts", best.expert, other.expert},
          {"exposed averages of gradients", best.gradients, other.gradients},
          {"exposed all-gather of parameters", best.parameters, other.parameters},
          {"messages between stages", best.pipeline, other.pipeline},
          {"bubble", best.bubble, other.bubble},
          {"the optimizer's step", best.optimizer, other.optimizer},
          {"the host's work", best.host, other.host}};
}

std::string percent_text(double share) {
  char text[32];
  std::snprintf(text, sizeof text, share < 0.0995 ? "%.1f %%" : "%.0f %%", 100 * share);
  return text;
}

std::string bytes_text(double bytes) {
  constexpr double kGiB = 1024.0 * 1024 * 1024, kMiB = 1024.0 * 1024;
  const double unit = bytes < kGiB ? kMiB : kGiB;
  char text[64];
  std::snprintf(text, sizeof text, bytes / unit < 99.95 ? "%.1f" : "%.0f", bytes / unit);
  return std::string(text) + (bytes < kGiB ? " MiB" : " GiB");
}

}  // namespace

std::string lack_of(const Estimate& estimate) {
  if (estimate.fits()) return "";
  return "stage " + std::to_string(estimate.memory.worst) + " does not fit by " +
         bytes_text(-estimate.spare_bytes);
}

std::string why_slower(const Estimate& best, const Estimate& other) {
  if (!other.fits()) return lack_of(other);
  constexpr double kSame = 0.005, kMuch = 0.02;
  if (other.step <= best.step * (1 + kSame)) {
    const double more = best.spare_bytes - other.spare_bytes;
    const double all = other.memory.stages.empty() ? 0 : other.memory.of_worst().total();
    return more > kMuch * all ? "as fast, and takes " + bytes_text(more) + " more" : "as fast";
  }
  const std::vector<Reason> reasons = reasons_of(best.time, other.time);
  const auto most = std::max_element(
      reasons.begin(), reasons.end(),
      [](const Reason& a, const Reason& b) { return a.other - a.best < b.other - b.best; });
  // Of a part that the best has as well, what it has more is the reason.
  const bool also = most->best > 0.2 * most->other;
  const double excess = (also ? most->other - most->best : most->other) / other.step;
  return std::string(most->words) + " " + (also ? "+" : "") + percent_text(excess);
}

}  // namespace lockstep::inline v0::plan
