#include "lockstep/wire/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/wire/challenge.h"

namespace lockstep::inline v0::wire {
namespace {

constexpr size_t kMostSent = size_t{1} << 20;  // sent bytes that are kept before unsent ones

}  // namespace

Channel::Channel(UniqueFd fd, Service service)
    : fd_(std::move(fd)),
      service_(service),
      peer_(peer_address(fd_.get())),
      local_(local_address(fd_.get())),
      incoming_(service.most) {
  set_no_delay(fd_.get());
}

Channel Channel::connect(const HostPort& server, const Secret& secret, Service service,
                         Deadline deadline) {
  Channel channel(connect_tcp(server, deadline), service);
  authenticate_as_client(channel.fd(), secret, service.purpose, deadline);
  return channel;
}

short Channel::events() const {
  return static_cast<short>((unsent() < service_.most_unsent ? POLLIN : 0) |
                            (unsent() > 0 ? POLLOUT : 0));
}

void Channel::send_frame(std::string_view frame) {
  outgoing_ += frame;
  flush();
}

void Channel::flush() {
  while (unsent() > 0 && lost_.empty()) {
    const ssize_t n =
        ::send(fd_.get(), outgoing_.data() + sent_, unsent(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      sent_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      // The reader of this end learns why; data that the other end sent before is still read.
      sent_ = outgoing_.size();
    }
  }
  if (unsent() > 0 && sent_ < kMostSent) return;
  outgoing_.erase(0, sent_);
  sent_ = 0;
}

size_t Channel::receive() {
  std::array<char, 65536> buffer;
  ssize_t n = 0;
  do {
    n = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  if (n <= 0) {
    lost_ = n == 0 || errno == ECONNRESET ? "its connection was closed" : std::strerror(errno);
    return 0;
  }
  incoming_.append({buffer.data(), static_cast<size_t>(n)});
  return static_cast<size_t>(n);
}

void Channel::pump(const std::function<void(std::string_view body)>& take, size_t budget) {
  flush();
  for (size_t taken = 0; lost_.empty() && taken < budget && unsent() < service_.most_unsent;) {
    const size_t received = receive();
    if (received == 0) break;
    taken += received;
    while (const auto body = incoming_.next()) take(*body);
  }
  if (!lost_.empty()) throw PeerLost(lost_, -1);
}

std::vector<std::string> Channel::pump() {
  std::vector<std::string> bodies;
  try {
    pump([&](std::string_view body) { bodies.emplace_back(body); });
  } catch (const PeerLost&) {
    if (bodies.empty()) throw;
  }
  return bodies;
}

}  // namespace lockstep::inline v0::wire
