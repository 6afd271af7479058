// Door: where the other ranks of a shm group connect to rank 0: a Unix socket that any process on
// the host may connect to. Not a public header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/wire/listener.h"

namespace lockstep::inline v0::shm {

inline constexpr const char* kPurpose = "shm";  // the challenge's purpose

// Abstract sockets have no permissions, so the other end must at least belong to this user;
// otherwise throws StoreError. Returns its process by the kernel's word; 0: not visible from here.
int32_t same_users_process(int fd);

class Door {
 public:
  // Listens. Throws SystemError.
  Door(const Secret& secret, int backlog);
  const std::string& name() const { return name_; }

  struct Visitor {
    UniqueFd fd;
    int32_t process = 0;  // same_users_process()
  };
  // Waits at most `wait` for a peer that proves the secret. An unauthenticated peer delays no
  // other, however silent it is. Throws SystemError when this process has no descriptor left for a
  // peer.
  std::optional<Visitor> next(Deadline wait);

 private:
  std::string name_;
  wire::Listener listener_;
};

}  // namespace lockstep::inline v0::shm
