// The tasks and answers of a contender's process in `lockstep bench rpc`, and the measurements of
// its client. It does without libtorch, for programs that cannot have libtorch in their process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::inline v0::bench {

enum class RpcWorkload {
  // Synchronous calls, one after another, of a function that adds two integers. Caller and server
  // have a processor each, where there are two.
  kSmall,
  kFlight,  // that function, by several threads that begin all their calls before they wait for one
  kTensor,  // a large float32 tensor as an argument, an answer of eight bytes
};
const char* to_string(RpcWorkload what);  // "small", "flight", "tensor"

struct RpcTask {
  RpcWorkload what = RpcWorkload::kSmall;
  double turn_ms = 1000;        // approximate length of a turn of small or tensor
  int64_t calls = 100'000;      // calls of a flight
  int threads = 8;              // threads of a flight
  int64_t bytes = 100'000'000;  // size of the tensor
};

// The times of a turn's operations: one call, one whole flight, one tensor until the answer is
// there.
struct RpcTurn {
  int64_t operations = 0;
  double p50_us = 0;
  double p99_us = 0;
};

// Lines of JSON.
// Throws: the parsers throw InvalidArgument that quotes the line.
std::string to_line(const RpcTask& task);
std::string to_line(const RpcTurn& turn);
RpcTask parse_rpc_task(const std::string& line);
RpcTurn parse_rpc_turn(const std::string& line);

// Requires: an operation.
RpcTurn make_rpc_turn(const std::vector<double>& times_us);

// A connection to a contender's server, as users of the contender call it.
// Throws: what the contender throws.
// Thread-safety: any thread for add() and add_many(), one for the rest.
class RpcCaller {
 public:
  virtual ~RpcCaller() = default;
  virtual int64_t add(int64_t a, int64_t b) = 0;
  // Begins add(first + i, 1) for i from 0 to n - 1, awaits all, and returns the sum of the results.
  virtual int64_t add_many(int64_t first, int64_t n) = 0;
  // Makes the tensor, float32 [elements], on this side.
  virtual void prepare(int64_t elements) = 0;
  // Sets all its elements.
  virtual void fill(float value) = 0;
  // Sends the tensor and returns the sum of its first, middle and last element, which the server
  // computes.
  virtual double send() = 0;
};

// Runs a client's turn.
// Throws: Error if an answer is wrong.
RpcTurn run_rpc_task(RpcCaller& caller, const RpcTask& task);

// A contender's server, which serves until it is destroyed.
class RpcServer {
 public:
  virtual ~RpcServer() = default;
  virtual std::string address() const = 0;  // one word, for its client
};

// The place where the two meet.
struct RpcEndpoint {
  // A numeric address for TCP between hosts; "": the quickest transport of one host.
  std::string listen;
  std::string variant;  // the contender's variant, where it has several
};
struct RpcSides {
  std::function<std::unique_ptr<RpcServer>(const RpcEndpoint&)> serve;  // empty: there is none
  std::function<std::unique_ptr<RpcCaller>(const RpcEndpoint&, const std::string& address)> connect;
};

// Runs a whole process of a contender. `words` are "server", the lines of turns.h, listen and
// variant; or "client", the same, and the server's address. Empty words are "-". Before their first
// turns the server tells its address and the client "ready". Returns the exit code; errors have
// been printed on stderr.
int run_rpc_process(const std::vector<std::string>& words, const RpcSides& sides);

}  // namespace lockstep::inline v0::bench
