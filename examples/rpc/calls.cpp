// Remote calls in short: a function, a future, a reference to an object, errors, a deadline, and a
// function that waits for others without keeping a thread. Runs on 2 ranks of its own when started
// by hand.
#include <ATen/Functions.h>
#include <lockstep/rpc/agent.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../on_ranks.h"

namespace {

namespace rpc = lockstep::rpc;

struct Counter {
  explicit Counter(int start) : value(start) {}
  int add(int x) { return value += x; }
  int value;
};

struct Point {
  double x = 0, y = 0;
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("x", x);
    visit("y", y);
  }
};

// Asks its caller, and answers once that has answered.
rpc::Future<int> ask_back(int x) {
  const int twice = co_await rpc::Agent::current().rpc_async<int>(rpc::caller(), "twice", x);
  co_return twice + 1;
}

rpc::Registry functions() {
  rpc::Registry registry;
  registry.add("matmul", [](const at::Tensor& a, const at::Tensor& b) { return a.matmul(b); });
  registry.add("twice", [](int x) { return 2 * x; }, {.quick = true});
  registry.add("mirror", [](const Point& p) { return Point{-p.x, -p.y}; });
  registry.add("make_counter", [](int start) { return std::make_shared<Counter>(start); });
  registry.add("add", &Counter::add);
  registry.add("ask_back", ask_back);
  registry.add("fail", [] { throw lockstep::DataError("there is no such thing"); });
  registry.add("sleep", [] {
    while (!rpc::cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  return registry;
}

void call(const rpc::Agent& agent) {
  const at::Tensor x = at::ones({2, 3});
  const auto product = agent.rpc_sync<at::Tensor>("worker1", "matmul", x, x.t());
  std::printf("matmul: %g\n", product.sum().item<double>());

  std::vector<rpc::Future<int>> under_way;  // several at once
  for (int i = 0; i < 3; ++i) under_way.push_back(agent.rpc_async<int>("worker1", "twice", i));
  for (const auto& one : under_way) std::printf("twice: %d\n", one.get());
  std::printf("mirror: %g\n", agent.rpc_sync<Point>("worker1", "mirror", Point{1, 2}).y);

  const rpc::RRef<Counter> counter = agent.remote<Counter>("worker1", "make_counter", 10);
  counter.rpc_sync<int>("add", 5);
  std::printf("counter of %s: %d\n", counter.owner().c_str(), counter.rpc_sync<int>("add", 5));
  std::printf("ask_back: %d\n", agent.rpc_sync<int>("worker1", "ask_back", 20));

  try {
    agent.rpc_sync("worker1", "fail");
  } catch (const rpc::RemoteError& error) {
    std::printf("'%s' on '%s': %s\n", error.function().c_str(), error.peer().c_str(),
                error.type().c_str());
  }
  try {
    agent.to("worker1", {.timeout = std::chrono::milliseconds(100)}).rpc_sync("sleep");
  } catch (const lockstep::Timeout&) {
    std::printf("'sleep' was given up after 0.1 s\n");
  }
}

void example(lockstep::Communicator& comm) {
  rpc::Agent agent = rpc::init(comm, functions());  // worker0, worker1, ...
  if (comm.rank() == 0 && comm.size() > 1) call(agent);
  agent.shutdown();  // serves others until all processes have come here
}

}  // namespace

int main() {
  return on_ranks(2, example);
}
