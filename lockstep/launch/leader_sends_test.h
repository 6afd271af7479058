// What the tests of the Leader ask of the messages that it sends.
#pragma once

#include <vector>

#include "lockstep/launch/leader.h"

namespace lockstep::inline v0::launch {
namespace leader_sends_test {

// The members that are sent a message of that kind, once for each message.
inline std::vector<int> told(const Leader::Sends& sends, AgentMessage::Kind kind) {
  std::vector<int> members;
  for (const auto& [to, message] : sends) {
    if (message.kind == kind) members.push_back(to);
  }
  return members;
}

}  // namespace leader_sends_test
}  // namespace lockstep::inline v0::launch
