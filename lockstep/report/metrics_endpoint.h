// MetricsEndpoint: gives a text, such as a job's metrics, to clients on this host's loopback
// interface for it by HTTP.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "lockstep/core/export.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

// How a MetricsEndpoint treats connections.
struct MetricsEndpointOptions {
  std::chrono::milliseconds time{5000};  // of a connection, from its begin to the answer's end
  size_t connections = 16;               // at a time; for more, the oldest one is closed
};

// Listens on 127.0.0.1 and answers GET /metrics (http_answer.h), in one thread, from the
// constructor to the destructor. A silent or slow client delays no other. There is no secret: every
// process of this host may read the text.
class LOCKSTEP_API MetricsEndpoint {
 public:
  // `port` 0: the system chooses one. `text` is called on the endpoint's thread for each request;
  // it must not block. If it throws, the client gets error 500, with the message.
  // Throws: InvalidArgument for a port that is taken, with the process that has it where /proc
  // tells; SystemError.
  MetricsEndpoint(uint16_t port, std::function<std::string()> text,
                  MetricsEndpointOptions options = {});
  // Closes the port and the connections.
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  uint16_t port() const { return port_; }  // it listens there

 private:
  class Server;

  UniqueFd door_, stop_;
  uint16_t port_;
  std::function<std::string()> text_;
  MetricsEndpointOptions options_;
  std::thread thread_;
};

// Throws InvalidArgument, as MetricsEndpoint, if one of `count` ports from `port` on cannot be
// listened on now; `what`: the name of the setting, which begins the message.
LOCKSTEP_API void check_metrics_ports(const std::string& what, int64_t port, int64_t count);

}  // namespace lockstep::inline v0
