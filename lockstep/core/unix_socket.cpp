#include "lockstep/core/unix_socket.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0 {
namespace {

constexpr int kFdsAMessage = 64;  // SCM_RIGHTS allows 253

}  // namespace

UniqueFd unix_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw system_error("socket(AF_UNIX)", errno);
  return fd;
}

AbstractAddress::AbstractAddress(const std::string& name) {
  address.sun_family = AF_UNIX;
  // A leading NUL: the name lives in the kernel rather than in a file system, and disappears with
  // the socket.
  LOCKSTEP_CHECK(name.size() <= kMaxAbstractName, "an abstract socket's name is short");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

UnixPeer unix_peer(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    throw system_error("SO_PEERCRED", errno);
  return {peer.pid, peer.uid};
}

void send_fds(int socket, const std::vector<int>& fds, Deadline deadline, const char* what) {
  for (size_t begin = 0; begin < fds.size(); begin += kFdsAMessage) {
    const size_t n = std::min<size_t>(kFdsAMessage, fds.size() - begin);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kFdsAMessage)] = {};
    char byte = 'F';
    iovec data{&byte, 1};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * n);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * n);
    std::memcpy(CMSG_DATA(header), fds.data() + begin, sizeof(int) * n);
    while (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
      if (errno == EAGAIN)
        wait_ready(socket, POLLOUT, deadline, what);
      else if (errno != EINTR)
        throw system_error("sendmsg", errno);
    }
  }
}

std::vector<UniqueFd> receive_fds(int socket, size_t count, Deadline deadline, const char* what) {
  std::vector<UniqueFd> fds;
  while (fds.size() < count) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kFdsAMessage)] = {};
    char byte = 0;
    iovec data{&byte, 1};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EAGAIN) {
      wait_ready(socket, POLLIN, deadline, what);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == ECONNRESET)
      throw PeerLost(std::string(what) + ": the other end went", -1);
    if (n < 0) throw system_error("recvmsg", errno);
    if (n == 0) throw PeerLost(std::string(what) + ": the other end went away", -1);
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    const bool rights =
        header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS;
    const size_t got = rights ? (header->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
    for (size_t i = 0; i < got; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
    // The kernel drops the descriptors for which this process has no free number.
    if ((message.msg_flags & MSG_CTRUNC) != 0)
      throw system_error(std::string(what) + ": taking the descriptors", EMFILE);
    if (!rights) throw StoreError(std::string(what) + ": a message without descriptors");
  }
  return fds;
}

}  // namespace lockstep::inline v0
