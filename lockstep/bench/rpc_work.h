// What a process of a contender of `lockstep bench rpc` is asked and answers, and how its client
// measures. No libtorch, so that programs which cannot have it in their process use it too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::bench {

enum class RpcWhat {
  // Synchronous calls, one after another, of a function that adds two integers; caller and server
  // each on a processor of its own, where there are two.
  kSmall,
  kFlight,  // that function, by several threads that begin all their calls before they wait for one
  kTensor,  // a large float32 tensor as an argument, an answer of eight bytes
};
const char* to_string(RpcWhat what);  // "small", "flight", "tensor"

struct RpcTask {
  RpcWhat what = RpcWhat::kSmall;
  double turn_ms = 1000;        // of small and tensor, about
  int64_t calls = 100'000;      // of a flight
  int threads = 8;              // likewise
  int64_t bytes = 100'000'000;  // of the tensor
};

// The times of a turn's operations: one call, one whole flight, one tensor until the answer is
// there.
struct RpcTurn {
  int64_t operations = 0;
  double p50_us = 0;
  double p99_us = 0;
};

// Lines of JSON. Parsers throw InvalidArgument that quotes the line.
std::string to_line(const RpcTask& task);
std::string to_line(const RpcTurn& turn);
RpcTask parse_rpc_task(const std::string& line);
RpcTurn parse_rpc_turn(const std::string& line);

// Requires: an operation.
RpcTurn make_rpc_turn(const std::vector<double>& times_us);

// A connection to a contender's server, as its users call it. Any thread for add() and add_many(),
// one for the rest.
// Throws: what the contender throws.
class RpcCaller {
 public:
  virtual ~RpcCaller() = default;
  virtual int64_t add(int64_t a, int64_t b) = 0;
  // add(first + i, 1) for i from 0 to n - 1: all are begun, then awaited. The sum of the results.
  virtual int64_t add_many(int64_t first, int64_t n) = 0;
  // Makes the tensor, float32 [elements], on this side.
  virtual void prepare(int64_t elements) = 0;
  // Sets all its elements.
  virtual void fill(float value) = 0;
  // Sends it and returns what the server found: the sum of its first, middle and last element.
  virtual double send() = 0;
};

// A turn of a client.
// Throws: Error if an answer is wrong.
RpcTurn run_rpc_task(RpcCaller& caller, const RpcTask& task);

// The other end; serves until it is destroyed.
class RpcServer {
 public:
  virtual ~RpcServer() = default;
  virtual std::string address() const = 0;  // for its client, one word
};

// Where the two meet.
struct RpcPlace {
  std::string
      listen;  // a numeric address for TCP between hosts; "": whatever is quickest on one host
  std::string variant;  // of the contender, where it has several; ""
};
struct RpcSides {
  std::function<std::unique_ptr<RpcServer>(const RpcPlace&)> serve;  // empty: there is none
  std::function<std::unique_ptr<RpcCaller>(const RpcPlace&, const std::string& address)> connect;
};

// A whole process of a contender. `words`: "server", the lines of turns.h, listen, variant; or
// "client", the same, and the server's address. Empty words are "-". The server says its address
// and the client "ready" before their first turns. Returns the exit code; what is thrown has been
// told on stderr.
int run_rpc_process(const std::vector<std::string>& words, const RpcSides& sides);

}  // namespace lockstep::bench
