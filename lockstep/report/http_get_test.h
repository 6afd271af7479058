// A client of HTTP for tests.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0 {

inline Deadline http_deadline() {
  return Deadline::after(std::chrono::seconds(60));
}

// What arrives up to the end of the connection.
inline std::string read_http_answer(int fd) {
  std::string all;
  std::array<char, 4096> bytes{};
  while (true) {
    wait_ready(fd, POLLIN, http_deadline(), "an answer");
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (got <= 0) return got == 0 ? all : all + " (reset)";
    all.append(bytes.data(), static_cast<size_t>(got));
  }
}

// The whole answer to a request to a port of this host.
inline std::string http_get(uint16_t port, const std::string& request =
                                               "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n") {
  const UniqueFd fd = connect_tcp({"127.0.0.1", port}, http_deadline());
  write_exact(fd.get(), request.data(), request.size(), http_deadline());
  return read_http_answer(fd.get());
}

}  // namespace lockstep::inline v0
