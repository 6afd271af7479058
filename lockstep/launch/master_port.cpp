#include "lockstep/launch/master_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {
namespace {

// Returns a socket bound to the wildcard address of both families, or of IPv4 if there is no IPv6.
// If it is empty, errno has the reason.
UniqueFd bind_wildcard(uint16_t port) {
  const int one = 1, zero = 0;
  UniqueFd v6(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (v6) {
    ::setsockopt(v6.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    ::setsockopt(v6.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    if (::bind(v6.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return v6;
    if (errno == EADDRINUSE || errno == EACCES) return UniqueFd();
  }
  UniqueFd v4(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!v4) return UniqueFd();
  ::setsockopt(v4.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::bind(v4.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return v4;
  return UniqueFd();
}

}  // namespace

PortReservation::PortReservation(std::optional<int> port) {
  socket_ = bind_wildcard(static_cast<uint16_t>(port.value_or(0)));
  if (!socket_) {
    const int error = errno;
    std::string what = "master port " + std::to_string(port.value_or(0)) + " cannot be had";
    if (error == EADDRINUSE) what += port_owner(static_cast<uint16_t>(port.value_or(0)));
    throw LaunchError(system_error(what, error).what() +
                      std::string("; leave --master-port out to get a free one"));
  }
  port_ = local_address(socket_.get()).port;
}

}  // namespace lockstep::inline v0::launch
