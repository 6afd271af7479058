// What the agent sends to a spare, a process that was started before a rank needs it, to make it that rank. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/launch/rank_environment.h"

namespace lockstep::launch {

// The variable that tells a spare of the descriptor on which its order comes.
inline constexpr const char* kSpareFd = "LOCKSTEP_SPARE_FD";

struct SpareOrder {
  Variables variables;    // of the rank; an empty value: to be removed
  std::vector<int> cpus;  // that its threads may use; empty: as before

  bool operator==(const SpareOrder&) const = default;
};

// One message. Names and values have no zero byte, as in any environment.
std::string encode(const SpareOrder& order);
// Throws InvalidArgument where the message is none of encode()'s.
SpareOrder decode_spare_order(std::string_view message);

}  // namespace lockstep::launch
