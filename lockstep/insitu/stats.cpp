#include "lockstep/insitu/stats.h"

#include <cstdio>

namespace lockstep::inline v0::insitu {
namespace {

const char* word_of(MemberState state) {
  switch (state) {
    case MemberState::kOpen:
      return "open";
    case MemberState::kClosed:
      return "closed";
    case MemberState::kLost:
      return "lost";
    default:
      return "none";
  }
}

}  // namespace

std::string RingStats::to_string() const {
  std::string text = std::to_string(produced) + " produced, " + std::to_string(consumed) +
                     " consumed, " + std::to_string(dropped) + " dropped, " +
                     std::to_string(abandoned) + " abandoned, " + std::to_string(redelivered) +
                     " redelivered; of " + std::to_string(slots) + " slots " +
                     std::to_string(full) + " full, " + std::to_string(writing) +
                     " being written, " + std::to_string(reading) + " being read";
  for (const MemberStats& row : members) {
    char waited[32];
    std::snprintf(waited, sizeof waited, "%.3f", row.waited_seconds);
    text += std::string("\n  ") + (row.producer ? "producer" : "consumer") + " pid " +
            std::to_string(row.pid) + " " + word_of(row.state) + ": ";
    text += row.producer ? std::to_string(row.produced) + " produced, " +
                               std::to_string(row.dropped) + " dropped"
                         : std::to_string(row.consumed) + " taken";
    text += std::string(", waited ") + waited + " s";
  }
  return text;
}

}  // namespace lockstep::inline v0::insitu
