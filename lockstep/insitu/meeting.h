// How the members of a ring find its memory by name. Not a public header.
//
// A ring's name is an abstract Unix socket that listens. Every member holds the same listening
// socket, and a thread of each hands the memory and the socket itself to those that connect. So the
// name lives as long as any member does, no member is special, and nothing is left when the last
// one is killed. The kernel tells each side the other's user.
#pragma once

#include <optional>
#include <string>
#include <thread>

#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/insitu/ring_memory.h"

namespace lockstep::inline v0::insitu {

// Throws: InvalidArgument unless it has 1 to 64 of the letters, the digits and "._-".
void check_name(const std::string& name);

// The socket of a ring's name, for this user.
std::string socket_name(const std::string& name);

struct Meeting {
  UniqueFd memory;
  UniqueFd listener;
};

// Takes the memory of the ring `name`. Where there is no such ring: makes it, if `geometry` is
// given, or waits for it.
// Throws: Timeout; InvalidArgument if another user's process has the name; SystemError.
Meeting meet(const std::string& name, const std::optional<Geometry>& geometry, Deadline deadline);

// Serves the ring's name, in a thread, until its end.
class Doorkeeper {
 public:
  // Takes the listener, and a duplicate of `memory`. Throws: SystemError.
  Doorkeeper(UniqueFd listener, int memory);
  ~Doorkeeper();
  Doorkeeper(const Doorkeeper&) = delete;
  Doorkeeper& operator=(const Doorkeeper&) = delete;

 private:
  void serve() noexcept;
  void let_in(int visitor) noexcept;

  UniqueFd listener_;
  UniqueFd memory_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace lockstep::inline v0::insitu
