#include "lockstep/wire/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::wire {

Channel::Channel(UniqueFd fd, Service service)
    : fd_(std::move(fd)),
      most_(service.most),
      peer_(peer_address(fd_.get())),
      local_(local_address(fd_.get())),
      incoming_(service.most) {
  set_no_delay(fd_.get());
}

Channel::Channel(UniqueFd fd, const Secret& secret, Service service)
    : Channel(std::move(fd), service) {
  challenge_.emplace(secret, service.purpose);
}

Channel Channel::connect(const HostPort& server, const Secret& secret, Service service,
                         Deadline deadline) {
  Channel channel(connect_tcp(server, deadline), service);
  authenticate_as_client(channel.fd(), secret, service.purpose, deadline);
  return channel;
}

short Channel::events() const {
  return static_cast<short>(POLLIN | (outgoing_.empty() ? 0 : POLLOUT));
}

void Channel::send(std::string_view body) {
  outgoing_ += make_frame(body, most_);
  flush();
}

void Channel::flush() {
  while (!outgoing_.empty() && lost_.empty()) {
    const ssize_t n =
        ::send(fd_.get(), outgoing_.data(), outgoing_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      outgoing_.erase(0, static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      // The reader of this end learns why; data that the other end sent before is still read.
      outgoing_.clear();
      return;
    }
  }
}

bool Channel::receive() {
  std::array<char, 65536> buffer;
  const size_t limit = challenge_ ? std::min(challenge_->wanted(), buffer.size()) : buffer.size();
  const ssize_t n = ::recv(fd_.get(), buffer.data(), limit, MSG_DONTWAIT);
  if (n < 0 && errno == EINTR) return true;
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (n <= 0) {
    lost_ = n == 0 || errno == ECONNRESET ? "its connection was closed" : std::strerror(errno);
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
  if (!challenge_) {
    incoming_.append(bytes);
    return true;
  }
  challenge_->answer(fd_.get(), bytes);
  if (challenge_->done()) challenge_.reset();
  return true;
}

std::vector<std::string> Channel::pump() {
  if (!lost_.empty()) throw PeerLost(lost_, -1);
  flush();
  std::vector<std::string> bodies;
  while (receive()) {
    while (const auto body = incoming_.next()) bodies.emplace_back(*body);
  }
  if (bodies.empty() && !lost_.empty()) throw PeerLost(lost_, -1);
  return bodies;
}

}  // namespace lockstep::wire
