// Channel: an authenticated connection that carries frames, for a poll(2) loop: nothing here waits,
// but connect().
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/wire/challenge.h"
#include "lockstep/wire/frames.h"

namespace lockstep::wire {

class Channel {
 public:
  // What it is for: part of the challenge, so that the ends of two services do not meet; and the
  // bytes of the longest body.
  struct Service {
    std::string_view purpose;
    size_t most = 0;
  };

  // The server's end of a new connection; the client has to pass the challenge before anything else
  // is read.
  Channel(UniqueFd fd, const Secret& secret, Service service);
  // The client's end. Throws Timeout, StoreError, PeerLost (it was closed during the challenge).
  static Channel connect(const HostPort& server, const Secret& secret, Service service,
                         Deadline deadline);

  int fd() const { return fd_.get(); }
  // Whether the other end has proved the secret.
  bool proved() const { return !challenge_; }
  // What to poll for.
  short events() const;
  const HostPort& peer() const { return peer_; }    // where the other end is, as seen from here
  const HostPort& local() const { return local_; }  // where this end is: the other one reached it

  // Puts the body into the queue, and sends what can be sent now. Throws InvalidArgument for one
  // that is too long.
  void send(std::string_view body);
  bool sent_all() const { return outgoing_.empty(); }
  // Sends and receives what can be now. Throws PeerLost, StoreError or SystemError once the
  // connection is of no use any more; bodies that came before are returned first.
  std::vector<std::string> pump();
  // Ends the connection; nothing else may be called but fd().
  void close() { fd_.reset(); }

 private:
  Channel(UniqueFd fd, Service service);
  void flush();
  bool receive();  // false: nothing there now

  UniqueFd fd_;
  size_t most_;
  HostPort peer_, local_;
  std::optional<ServerChallenge> challenge_;  // until passed
  FrameReader incoming_;
  std::string outgoing_;
  std::string lost_;  // why the connection is of no use; empty: it is
};

}  // namespace lockstep::wire
