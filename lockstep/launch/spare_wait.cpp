#include "lockstep/launch/spare_wait.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <string>

#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/launch/spare_order.h"

namespace lockstep::inline v0::launch {
namespace {

InvalidArgument no_such_descriptor(int fd, int error) {
  return InvalidArgument(
      system_error(std::string(kSpareFd) + "=" + std::to_string(fd), error).what() +
      std::string(": this process does not have the descriptor that lockstep run gave its spare; "
                  "let the program keep "
                  "what it inherits, or leave --spare-ranks out"));
}

// The order, or "" where none will arrive. It stays in the socket: a script that is the spare may
// start several programs of the rank, one after another, and each finds it.
std::string await_order(int fd) {
  while (true) {
    char none = 0;
    const ssize_t size = ::recv(fd, &none, sizeof none, MSG_PEEK | MSG_TRUNC);
    // The agent closed its end before it read this one's message; an order may have arrived before.
    if (size < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (size < 0) throw no_such_descriptor(fd, errno);
    std::string message(static_cast<size_t>(size), '\0');
    if (size > 0 && ::recv(fd, message.data(), message.size(), MSG_PEEK) != size) continue;
    return message;
  }
}

}  // namespace

void wait_if_spare() {
  const EnvLookup env = process_env();
  const auto number = env_int(env, kSpareFd, 0, INT_MAX);
  if (!number) return;
  const int fd = static_cast<int>(*number);
  // Tells the agent that this spare waits. If the agent is gone, the wait below finds out.
  if (::send(fd, "w", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && (errno == EBADF || errno == ENOTSOCK))
    throw no_such_descriptor(fd, errno);
  // It needs no deadline: the agent's end of the pair is closed with the job, which ends the wait.
  const std::string message = await_order(fd);
  if (message.empty()) ::_exit(0);
  const SpareOrder order = decode_spare_order(message);
  for (const auto& [name, value] : order.variables) {
    if (value.empty())
      ::unsetenv(name.c_str());
    else
      ::setenv(name.c_str(), value.c_str(), 1);
  }
  move_threads_to(order.cpus);
  ::unsetenv(kSpareFd);
  ::close(fd);
}

}  // namespace lockstep::inline v0::launch
