// AgentChannel: a connection between two agents, for a poll(2) loop (wire/channel.h).
#pragma once

#include <vector>

#include "lockstep/launch/agent_message.h"
#include "lockstep/wire/channel.h"

namespace lockstep::inline v0::launch {

class AgentChannel {
 public:
  static constexpr const char* kPurpose = "agent";  // of the challenge

  // The server's end of a connection whose client has passed the challenge.
  // Throws: SystemError where the client has left already.
  explicit AgentChannel(UniqueFd fd);
  // The client's end.
  // Throws: Timeout, StoreError.
  static AgentChannel connect(const HostPort& server, const Secret& secret, Deadline deadline);

  int fd() const { return channel_.fd(); }
  short events() const { return channel_.events(); }
  const HostPort& peer() const { return channel_.peer(); }
  const HostPort& local() const { return channel_.local(); }

  // As wire::Channel's functions.
  void send(const AgentMessage& message) { channel_.send(encode(message)); }
  bool sent_all() const { return channel_.sent_all(); }
  std::vector<AgentMessage> pump();
  void close() { channel_.close(); }

 private:
  explicit AgentChannel(wire::Channel channel) : channel_(std::move(channel)) {}

  wire::Channel channel_;
};

}  // namespace lockstep::inline v0::launch
