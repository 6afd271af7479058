#include "lockstep/bench/rpc_work.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/bench/turns.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/quantile.h"

namespace lockstep::inline v0::bench {

NLOHMANN_JSON_SERIALIZE_ENUM(RpcWorkload, {{RpcWorkload::kSmall, "small"},
                                           {RpcWorkload::kFlight, "flight"},
                                           {RpcWorkload::kTensor, "tensor"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RpcTask, what, turn_ms, calls, threads, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RpcTurn, operations, p50_us, p99_us)

namespace {

constexpr int kWarmUpCalls = 100;
constexpr size_t kMostCalls = 200'000;  // calls of a turn, at most
constexpr size_t kLeastCalls = 20;      // calls of a turn, at least
constexpr size_t kLeastSends = 3;       // tensors of a turn, at least

using RpcClock = std::chrono::steady_clock;

double us_since(RpcClock::time_point start) {
  return std::chrono::duration<double, std::micro>(RpcClock::now() - start).count();
}

template <typename T>
T parse_rpc_line(const std::string& line) {
  try {
    return nlohmann::json::parse(line).get<T>();
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument("bench rpc: '" + line.substr(0, 80) +
                          "' is no line of it: " + error.what());
  }
}

void expect_answer(bool right, const char* what) {
  if (!right) throw Error(std::string("the server's answer to ") + what + " is wrong");
}

RpcTurn run_small(RpcCaller& caller, const RpcTask& task) {
  for (int i = 0; i < kWarmUpCalls; ++i) expect_answer(caller.add(i, 2) == i + 2, "add");
  std::vector<double> times;
  const auto start = RpcClock::now();
  while (times.size() < kLeastCalls ||
         (us_since(start) < task.turn_ms * 1e3 && times.size() < kMostCalls)) {
    const auto i = static_cast<int64_t>(times.size());
    const auto begin = RpcClock::now();
    const int64_t sum = caller.add(i, 3);
    times.push_back(us_since(begin));
    expect_answer(sum == i + 3, "add");
  }
  return make_rpc_turn(std::move(times));
}

// Returns the seconds of one flight, whose threads begin together.
double fly(RpcCaller& caller, int64_t calls, int threads) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(threads));
  std::vector<std::thread> pool;
  std::barrier start(threads + 1);
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      const int64_t first = calls * t / threads, n = calls * (t + 1) / threads - first;
      start.arrive_and_wait();
      try {
        const int64_t sum = caller.add_many(first, n);
        expect_answer(sum == n * first + n * (n - 1) / 2 + n, "many calls of add");
      } catch (...) {
        errors[static_cast<size_t>(t)] = std::current_exception();
      }
    });
  }
  start.arrive_and_wait();
  const auto begin = RpcClock::now();
  for (std::thread& thread : pool) thread.join();
  const double us = us_since(begin);
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return us;
}

RpcTurn run_flight(RpcCaller& caller, const RpcTask& task) {
  fly(caller, std::max<int64_t>(task.threads, task.calls / 50), task.threads);
  return make_rpc_turn({fly(caller, task.calls, task.threads)});
}

RpcTurn run_tensor(RpcCaller& caller, const RpcTask& task) {
  const auto send = [&](int value) {
    const auto filled = static_cast<float>(value % 100 + 1);
    caller.fill(filled);
    const auto begin = RpcClock::now();
    const double found = caller.send();
    const double us = us_since(begin);
    expect_answer(found == 3.0 * filled, "a tensor");
    return us;
  };
  caller.prepare(std::max<int64_t>(1, task.bytes / 4));
  send(0);
  std::vector<double> times;
  const auto start = RpcClock::now();
  while (times.size() < kLeastSends || us_since(start) < task.turn_ms * 1e3)
    times.push_back(send(static_cast<int>(times.size()) + 1));
  return make_rpc_turn(std::move(times));
}

std::string word_at(const std::vector<std::string>& words, size_t at) {
  if (words.size() <= at)
    throw InvalidArgument("a process of 'bench rpc' is started by it, not by hand");
  return words[at] == "-" ? "" : words[at];
}

}  // namespace

const char* to_string(RpcWorkload what) {
  switch (what) {
    case RpcWorkload::kSmall:
      return "small";
    case RpcWorkload::kFlight:
      return "flight";
    default:
      return "tensor";
  }
}

std::string to_line(const RpcTask& task) {
  return nlohmann::json(task).dump();
}

std::string to_line(const RpcTurn& turn) {
  return nlohmann::json(turn).dump();
}

RpcTask parse_rpc_task(const std::string& line) {
  return parse_rpc_line<RpcTask>(line);
}

RpcTurn parse_rpc_turn(const std::string& line) {
  const auto turn = parse_rpc_line<RpcTurn>(line);
  if (turn.operations < 1 || !(turn.p50_us > 0)) {
    throw InvalidArgument("bench rpc: a contender answered '" + line.substr(0, 80) +
                          "', in which there is no time");
  }
  return turn;
}

RpcTurn make_rpc_turn(const std::vector<double>& times_us) {
  return {.operations = static_cast<int64_t>(times_us.size()),
          .p50_us = quantile(times_us, 0.5),
          .p99_us = quantile(times_us, 0.99)};
}

RpcTurn run_rpc_task(RpcCaller& caller, const RpcTask& task) {
  switch (task.what) {
    case RpcWorkload::kSmall:
      return run_small(caller, task);
    case RpcWorkload::kFlight:
      return run_flight(caller, task);
    default:
      return run_tensor(caller, task);
  }
}

int run_rpc_process(const std::vector<std::string>& words, const RpcSides& sides) {
  try {
    const std::string role = word_at(words, 0);
    const RpcEndpoint place{.listen = word_at(words, 2), .variant = word_at(words, 3)};
    TurnTaker turns(word_at(words, 1), role == "server" ? 0 : 1);
    if (role == "server") {
      const std::unique_ptr<RpcServer> server = sides.serve(place);
      turns.answer(server->address());
      while (!turns.take_task().empty()) {
      }
      return 0;
    }
    const std::unique_ptr<RpcCaller> caller = sides.connect(place, word_at(words, 4));
    turns.answer("ready");
    for (std::string line; !(line = turns.take_task()).empty();)
      turns.answer(to_line(run_rpc_task(*caller, parse_rpc_task(line))));
    return 0;
  } catch (const InvalidArgument& error) {
    log_error(std::string("bench rpc: ") + error.what());
    return 2;
  } catch (const std::exception& error) {
    log_error(std::string("bench rpc: ") + error.what());
    return 1;
  }
}

}  // namespace lockstep::inline v0::bench
