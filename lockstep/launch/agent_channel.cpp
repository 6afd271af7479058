#include "lockstep/launch/agent_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::launch {
namespace {

constexpr const char* kPurpose = "agent";

}  // namespace

AgentChannel::AgentChannel(UniqueFd fd)
    : fd_(std::move(fd)), peer_(peer_address(fd_.get())), local_(local_address(fd_.get())) {
  set_no_delay(fd_.get());
}

AgentChannel::AgentChannel(UniqueFd fd, const Secret& secret) : AgentChannel(std::move(fd)) {
  challenge_.emplace(secret, kPurpose);
}

AgentChannel AgentChannel::connect(const HostPort& server, const Secret& secret,
                                   Deadline deadline) {
  AgentChannel channel(connect_tcp(server, deadline));
  try {
    authenticate_as_client(channel.fd(), secret, kPurpose, deadline);
  } catch (const PeerLost&) {
    throw StoreError("the agent at " + server.to_string() + " closed the connection");
  }
  return channel;
}

short AgentChannel::events() const {
  return static_cast<short>(POLLIN | (outgoing_.empty() ? 0 : POLLOUT));
}

void AgentChannel::send(const AgentMessage& message) {
  outgoing_ += encode(message);
  flush();
}

void AgentChannel::flush() {
  while (!outgoing_.empty() && lost_.empty()) {
    const ssize_t n =
        ::send(fd_.get(), outgoing_.data(), outgoing_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      outgoing_.erase(0, static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      // The reader of this end learns why; what the other end sent before is still read.
      outgoing_.clear();
      return;
    }
  }
}

bool AgentChannel::receive() {
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
  outgoing_ += challenge_->feed(bytes);
  if (challenge_->done()) challenge_.reset();
  flush();
  return true;
}

std::vector<AgentMessage> AgentChannel::pump() {
  if (!lost_.empty()) throw PeerLost(lost_, -1);
  flush();
  std::vector<AgentMessage> messages;
  while (receive()) {
    while (const auto body = incoming_.next()) messages.push_back(decode_agent_message(*body));
  }
  if (messages.empty() && !lost_.empty()) throw PeerLost(lost_, -1);
  return messages;
}

}  // namespace lockstep::launch
