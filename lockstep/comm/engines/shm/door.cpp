#include "lockstep/comm/engines/shm/door.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/unix_socket.h"

namespace lockstep::inline v0::shm {
namespace {

UniqueFd listen(const std::string& name, int backlog) {
  UniqueFd fd = unix_socket();
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

int32_t same_users_process(int fd) {
  const UnixPeer peer = unix_peer(fd);
  if (peer.user != ::geteuid()) {
    throw StoreError("a process of user " + std::to_string(peer.user) +
                     " tried to join this job's shared memory");
  }
  return peer.process;
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
