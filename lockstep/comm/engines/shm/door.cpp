#include "lockstep/comm/engines/shm/door.h"

#include <poll.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::shm {
namespace {

UniqueFd listen(const std::string& name, int backlog) {
  UniqueFd fd = make_socket();
  const AbstractAddress address(name);
  if (::bind(fd.get(), address.get(), address.size) != 0 || ::listen(fd.get(), backlog) != 0)
    throw system_error("bind of the shared memory's socket", errno);
  return fd;
}

// Another user's process is not; the job continues.
bool is_same_users(int fd) {
  try {
    same_users_process(fd);
    return true;
  } catch (const StoreError&) {
    return false;
  }
}

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
    : name_("lockstep-" + to_hex(random_bytes(16))),
      listener_(listen(name_, backlog), secret,
                {.where = "shm", .purpose = kPurpose, .admits = is_same_users}) {}

std::optional<Door::Visitor> Door::next(Deadline wait) {
  pollfd ready{listener_.fd(), POLLIN, 0};
  if (::poll(&ready, 1, wait.poll_ms()) <= 0) return std::nullopt;
  if (auto connection = listener_.next()) {
    const int32_t process = same_users_process(connection->fd.get());
    return Visitor{std::move(connection->fd), process};
  }
  if (listener_.starved() != 0) throw system_error("shm: accept", listener_.starved());
  return std::nullopt;
}

}  // namespace lockstep::inline v0::shm
