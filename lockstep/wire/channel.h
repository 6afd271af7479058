// Channel: an authenticated connection that carries frames, for a poll(2) loop. Only connect()
// waits.
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
  // Its purpose, which is part of the challenge, so that the ends of different services do not
  // connect; and the maximum size of a body in bytes.
  struct Service {
    std::string_view purpose;
    size_t most = 0;
  };

  // The server's end of a new connection; the client must pass the challenge before anything else
  // is read.
  Channel(UniqueFd fd, const Secret& secret, Service service);
  // The client's end.
  // Throws: Timeout, StoreError, PeerLost (it was closed during the challenge).
  static Channel connect(const HostPort& server, const Secret& secret, Service service,
                         Deadline deadline);

  int fd() const { return fd_.get(); }
  // Whether the other end has proved the secret.
  bool proved() const { return !challenge_; }
  // The events to poll for.
  short events() const;
  const HostPort& peer() const { return peer_; }  // the other end's address, as seen from here
  // This end's address, at which the other end reached it.
  const HostPort& local() const { return local_; }

  // Queues the body, and sends as much as possible now.
  // Throws: InvalidArgument for a body that is too long.
  void send(std::string_view body);
  bool sent_all() const { return outgoing_.empty(); }
  // Sends and receives as much as possible now.
  // Throws: PeerLost, StoreError or SystemError once the connection is unusable; bodies that
  // arrived before are returned first.
  std::vector<std::string> pump();
  // Ends the connection; only fd() may be called afterwards.
  void close() { fd_.reset(); }

 private:
  Channel(UniqueFd fd, Service service);
  void flush();
  bool receive();  // false: there are no bytes now

  UniqueFd fd_;
  size_t most_;
  HostPort peer_, local_;
  std::optional<ServerChallenge> challenge_;  // until it is passed
  FrameReader incoming_;
  std::string outgoing_;
  std::string lost_;  // why the connection is unusable; empty: it is usable
};

}  // namespace lockstep::wire
