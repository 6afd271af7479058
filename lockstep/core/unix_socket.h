// Unix sockets in the abstract namespace, by which processes of one host meet and hand over
// descriptors. Their names live in the kernel and disappear with the socket, so that no kill leaves
// one behind.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

// A stream socket that does not block, close-on-exec.
// Throws: SystemError.
UniqueFd unix_socket();

// The longest name of an abstract socket.
inline constexpr size_t kMaxAbstractName = sizeof(sockaddr_un::sun_path) - 1;

struct AbstractAddress {
  // At most kMaxAbstractName characters.
  explicit AbstractAddress(const std::string& name);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t size = 0;
};

// The process and the user of a connected socket's other end, by the kernel's word: of the process
// that called connect() or listen().
struct UnixPeer {
  int32_t process = 0;  // 0: not visible from here
  uid_t user = 0;
};
// Throws: SystemError.
UnixPeer unix_peer(int fd);

// Hands descriptors to the other end, which keeps its own duplicates. `what` is for messages.
// Throws: Timeout, SystemError.
void send_fds(int socket, const std::vector<int>& fds, Deadline deadline,
              const char* what = "handing out shared memory");

// Takes `count` descriptors, close-on-exec.
// Throws: Timeout; PeerLost(rank -1) if the other end has gone; StoreError for a message without
// descriptors; SystemError, EMFILE where this process has no free number for them.
std::vector<UniqueFd> receive_fds(int socket, size_t count, Deadline deadline,
                                  const char* what = "waiting for shared memory");

}  // namespace lockstep::inline v0
