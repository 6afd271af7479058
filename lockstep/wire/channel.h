// Channel: an authenticated connection that carries frames, for a poll(2) loop. Only connect()
// waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/wire/frames.h"

namespace lockstep::inline v0::wire {

class Channel {
 public:
  // Its purpose, which is part of the challenge, so that the ends of different services do not
  // connect; the maximum size of a body in bytes; and the unsent bytes from which on nothing is
  // received, until the other end has read some of them.
  struct Service {
    std::string_view purpose;
    size_t most = 0;
    size_t most_unsent = SIZE_MAX;
  };

  // The server's end of a connection whose client has passed the challenge (listener.h).
  // Throws: SystemError where the client has left already.
  Channel(UniqueFd fd, Service service);
  // The client's end.
  // Throws: Timeout, StoreError, PeerLost (it was closed during the challenge).
  static Channel connect(const HostPort& server, const Secret& secret, Service service,
                         Deadline deadline);

  int fd() const { return fd_.get(); }
  // The events to poll for.
  short events() const;
  const HostPort& peer() const { return peer_; }  // the other end's address, as seen from here
  // This end's address, at which the other end reached it.
  const HostPort& local() const { return local_; }

  // Queues the body, and sends as much as possible now.
  // Throws: InvalidArgument for a body that is too long.
  void send(std::string_view body) { send_frame(make_frame(body, service_.most)); }
  void send_frame(std::string_view frame);
  bool sent_all() const { return outgoing_.empty(); }
  // Sends and receives as much as possible now, but not much more than `budget` bytes. Gives the
  // bodies to `take`, valid during the call.
  // Throws: PeerLost or StoreError once the connection is unusable; what `take` throws.
  void pump(const std::function<void(std::string_view body)>& take, size_t budget = SIZE_MAX);
  // The same, but bodies that arrived before PeerLost are returned first.
  std::vector<std::string> pump();
  // Ends the connection; only fd() may be called afterwards.
  void close() { fd_.reset(); }

 private:
  void flush();
  size_t unsent() const { return outgoing_.size() - sent_; }
  size_t receive();  // 0: there are no bytes now

  UniqueFd fd_;
  Service service_;
  HostPort peer_, local_;
  FrameReader incoming_;
  std::string outgoing_;
  size_t sent_ = 0;   // its bytes that have been sent
  std::string lost_;  // why the connection is unusable; empty: it is usable
};

}  // namespace lockstep::inline v0::wire
