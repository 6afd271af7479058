#include "lockstep/comm/engines/shm/door.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::shm {
namespace {

constexpr size_t kMaxUnauthenticated = 256;
constexpr int kAcceptedAtATime = 64;  // afterwards it is the other sockets' turn

}  // namespace

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw system_error("socket(AF_UNIX)", errno);
  return fd;
}

AbstractAddress::AbstractAddress(const std::string& name) {
  address.sun_family = AF_UNIX;
  // A leading NUL: the name lives in the kernel rather than in a file system, and disappears with
  // the socket.
  LOCKSTEP_CHECK(name.size() + 1 < sizeof address.sun_path, "the door's name is short");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

int32_t same_users_process(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    throw system_error("SO_PEERCRED", errno);
  if (peer.uid != ::geteuid()) {
    throw StoreError("a process of user " + std::to_string(peer.uid) +
                     " tried to join this job's shared memory");
  }
  return peer.pid;
}

Door::Door(const Secret& secret, int backlog)
    : secret_(secret),
      name_("lockstep-" + to_hex(random_bytes(16))),
      listener_(make_socket()),
      unauthenticated_(wire::most_unauthenticated(kMaxUnauthenticated)) {
  const AbstractAddress address(name_);
  if (::bind(listener_.get(), address.get(), address.size) != 0 ||
      ::listen(listener_.get(), backlog) != 0)
    throw system_error("bind of the shared memory's socket", errno);
}

std::optional<Door::Visitor> Door::next(Deadline wait) {
  std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
  std::vector<uint64_t> ids{0};
  for (const auto& [id, peer] : waiting_) {
    fds.push_back({peer.visitor.fd.get(), POLLIN, 0});
    ids.push_back(id);
  }
  if (::poll(fds.data(), fds.size(), wait.poll_ms()) <= 0) return std::nullopt;
  for (size_t i = 1; i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    const auto found = waiting_.find(ids[i]);
    const bool stays = advance(found->second);
    if (stays && !found->second.challenge.done()) continue;
    Visitor visitor = std::move(found->second.visitor);
    waiting_.erase(found);
    unauthenticated_.remove(ids[i]);
    if (stays) return visitor;
  }
  if (fds[0].revents != 0) accept();
  return std::nullopt;
}

void Door::accept() {
  for (int i = 0; i < kAcceptedAtATime; ++i) {
    UniqueFd fd = acceptor_.next(listener_.get());
    if (acceptor_.starved()) throw system_error("shm: accept", acceptor_.error());
    if (!fd) return;
    try {
      const int32_t process = same_users_process(fd.get());
      const uint64_t id = ++last_;
      unauthenticated_.add(id, wire::source_of(fd.get()));
      waiting_.emplace(id, UnauthenticatedPeer{{std::move(fd), process}, {secret_, kPurpose}});
    } catch (const StoreError&) {
      continue;  // another user's process; the job continues
    }
    if (!unauthenticated_.too_many()) continue;
    const uint64_t first = *unauthenticated_.first_to_go();
    unauthenticated_.remove(first);
    waiting_.erase(first);
  }
}

// Returns false if the connection is closed, uses another protocol, or has another secret.
bool Door::advance(UnauthenticatedPeer& peer) const {
  try {
    while (!peer.challenge.done()) {
      std::string bytes(peer.challenge.wanted(), '\0');
      const int fd = peer.visitor.fd.get();
      const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return true;
      if (n <= 0) return false;
      bytes.resize(static_cast<size_t>(n));
      peer.challenge.answer(fd, bytes);
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace lockstep::shm
