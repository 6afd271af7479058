// AgentChannel: an authenticated connection between two agents, for a poll(2) loop: nothing here
// waits, but connect().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/launch/agent_message.h"
#include "lockstep/store/store_protocol.h"

namespace lockstep::launch {

class AgentChannel {
 public:
  // The server's end of a new connection; the client has to pass the challenge before anything else
  // is read.
  AgentChannel(UniqueFd fd, const Secret& secret);
  // The client's end. Throws Timeout, StoreError.
  static AgentChannel connect(const HostPort& server, const Secret& secret, Deadline deadline);

  int fd() const { return fd_.get(); }
  // What to poll for.
  short events() const;
  const HostPort& peer() const { return peer_; }    // where the other end is, as seen from here
  const HostPort& local() const { return local_; }  // where this end is: the other one reached it

  // Puts the message into the queue, and sends what can be sent now.
  void send(const AgentMessage& message);
  bool sent_all() const { return outgoing_.empty(); }
  // Sends and receives what can be now. Throws PeerLost, StoreError or SystemError once the
  // connection is of no use any more; messages that came before are returned first.
  std::vector<AgentMessage> pump();
  // Ends the connection; nothing else may be called but fd().
  void close() { fd_.reset(); }

 private:
  explicit AgentChannel(UniqueFd fd);
  void flush();
  bool receive();  // false: nothing there now

  UniqueFd fd_;
  HostPort peer_, local_;
  std::optional<ServerChallenge> challenge_;  // until passed
  FrameReader incoming_;
  std::string outgoing_;
  std::string lost_;  // why the connection is of no use; empty: it is
};

}  // namespace lockstep::launch
