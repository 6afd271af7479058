#include "lockstep/launch/agent_channel.h"

#include <string>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {
namespace {

constexpr wire::Channel::Service kAgents{.purpose = AgentChannel::kPurpose,
                                         .most = size_t{128} << 20};

}  // namespace

AgentChannel::AgentChannel(UniqueFd fd) : channel_(std::move(fd), kAgents) {}

AgentChannel AgentChannel::connect(const HostPort& server, const Secret& secret,
                                   Deadline deadline) {
  try {
    return AgentChannel(wire::Channel::connect(server, secret, kAgents, deadline));
  } catch (const PeerLost&) {
    throw StoreError("the agent at " + server.to_string() + " closed the connection");
  }
}

std::vector<AgentMessage> AgentChannel::pump() {
  std::vector<AgentMessage> messages;
  for (const std::string& body : channel_.pump()) messages.push_back(decode_agent_message(body));
  return messages;
}

}  // namespace lockstep::inline v0::launch
