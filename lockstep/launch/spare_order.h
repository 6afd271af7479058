// The agent's order that makes a spare, a process that was started before a rank needs it, that
// rank. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/launch/rank_environment.h"

namespace lockstep::inline v0::launch {

// The variable with the descriptor on which a spare receives its order.
inline constexpr const char* kSpareFd = "LOCKSTEP_SPARE_FD";

struct SpareOrder {
  Variables variables;    // the rank's; an empty value removes a variable
  std::vector<int> cpus;  // for its threads; empty: unchanged

  bool operator==(const SpareOrder&) const = default;
};

// One message. Names and values have no zero byte, as in any environment.
std::string encode(const SpareOrder& order);
// Throws InvalidArgument for a message that encode() did not make.
SpareOrder decode_spare_order(std::string_view message);

}  // namespace lockstep::inline v0::launch
