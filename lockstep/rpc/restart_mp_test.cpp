// A parameter server dies and comes back under its name, and its trainers continue. Also deadlines,
// with a stopped process.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/process_state.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/rpc/agent.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::inline v0::rpc::restart_mp_test {
namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;
using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline patience() {
  return Deadline::seconds(60);
}

// Its process passes the address to others in the environment.
class ServedStore {
 public:
  ServedStore() : secret_(Secret::generate()), server_({"127.0.0.1", 0}, secret_) {
    ::setenv("LOCKSTEP_TEST_STORE", server_.address().to_string().c_str(), 1);
    ::setenv("LOCKSTEP_TEST_SECRET", secret_.text().c_str(), 1);
  }
  ~ServedStore() {
    ::unsetenv("LOCKSTEP_TEST_STORE");
    ::unsetenv("LOCKSTEP_TEST_SECRET");
  }
  Agent agent(const std::string& name, Registry registry = {}, AgentOptions options = {}) const {
    options.secret = secret_;
    return init(name, std::make_shared<TcpStore>(server_.address(), secret_, patience()),
                std::move(registry), std::move(options));
  }

 private:
  Secret secret_;
  TcpStoreServer server_;
};

Subprocess participant(const std::string& name) {
  SubprocessOptions options;
  options.command = {"participant", "--gtest_also_run_disabled_tests",
                     "--gtest_filter=RpcServer.DISABLED_" + name};
  options.program = "/proc/self/exe";
  return Subprocess(options);
}

struct Table {
  double entry = 1.5;
};

// A sum of the values that its trainers send, and how often each has sent. It can restart from a
// state that the trainers have.
struct Server {
  Mutex mutex;
  at::Tensor sum LOCKSTEP_GUARDED_BY(mutex);  // undefined: it has just been started
  std::map<std::string, int64_t> steps LOCKSTEP_GUARDED_BY(mutex);
};

// The tests below run it in a process of its own, until it is killed.
TEST(RpcServer, DISABLED_Serves) {
  const auto env = [](const char* name) { return process_env()(name).value(); };
  Server server;
  Registry registry;
  registry.add("pid", [] { return static_cast<int64_t>(::getpid()); });
  registry.add("sleep", [](double seconds) { std::this_thread::sleep_for(Seconds(seconds)); });
  registry.add("relay", [](const std::string& to, double seconds) {
    Agent::current().rpc_sync(to, "sleep", seconds);
  });
  registry.add("table", [] { return std::make_shared<Table>(); });
  registry.add("entry", [](const Table& table) { return table.entry; });
  // Returns the sum, and how often the caller has sent. The same step may be sent repeatedly: it
  // counts once.
  registry.add("push", [&](const at::Tensor& gradient, int64_t step) {
    const MutexLock lock(server.mutex);
    if (!server.sum.defined()) server.sum = at::zeros_like(gradient);
    int64_t& steps = server.steps[caller()];
    if (step == steps + 1) {
      server.sum += gradient;
      ++steps;
    }
    return std::pair(server.sum.clone(), steps);
  });
  registry.add("restore", [&](int64_t step, const at::Tensor& own) {
    const MutexLock lock(server.mutex);
    int64_t& steps = server.steps[caller()];
    if (steps > 0) return;
    if (!server.sum.defined()) server.sum = at::zeros_like(own);
    server.sum += own;
    steps = step;
  });
  const Secret secret = Secret::from_text(env("LOCKSTEP_TEST_SECRET"));
  Agent agent = init(
      "ps",
      std::make_shared<TcpStore>(parse_host_port(env("LOCKSTEP_TEST_STORE")), secret, patience()),
      std::move(registry), {.secret = secret});
  while (true) std::this_thread::sleep_for(1h);
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// Pushes `steps` times; a trainer that finds the server without its values sends all of them again.
int64_t train(const Agent& agent, int64_t steps, std::atomic<int64_t>& progress) {
  constexpr int64_t kSize = 100'000;  // a large tensor, read out of this process's memory
  int64_t failures = 0, done = 0;
  const at::Tensor gradient = at::full({kSize}, 1.0f);
  const Deadline end = patience();
  while (done < steps && !end.expired()) {
    try {
      const auto [sum, counted] =
          agent.to("ps", {.timeout = 5s})
              .rpc_sync<std::pair<at::Tensor, int64_t>>("push", gradient, done + 1);
      if (counted == done + 1) {
        ++done;
        ++progress;
        EXPECT_GE(sum[0].item<float>(), static_cast<float>(done));
      } else {  // it has been restarted
        agent.rpc_sync("ps", "restore", done, gradient * done);
      }
    } catch (const PeerLost& error) {
      EXPECT_THAT(error.what(), HasSubstr("'ps'"));
      ++failures;
    } catch (const Timeout& error) {
      EXPECT_THAT(error.what(), HasSubstr("'ps'"));
      ++failures;
    }
  }
  EXPECT_EQ(done, steps);
  return failures;
}

TEST(RpcRestart, AParameterServerComesBackAndItsTrainersGoOn) {
  constexpr int kTrainers = 3;
  constexpr int64_t kSteps = 300;
  const ServedStore store;
  std::vector<Agent> trainers;
  for (int i = 0; i < kTrainers; ++i)
    trainers.push_back(store.agent("trainer" + std::to_string(i)));
  std::optional<Subprocess> server(participant("Serves"));
  const Agent& first = trainers[0];
  const auto table = first.remote<Table>("ps", "table");
  EXPECT_EQ(table.rpc_sync<double>("entry"), 1.5);
  const auto old = first.rpc_sync<int64_t>("ps", "pid");
  EXPECT_EQ(old, server->pid());

  std::atomic<int64_t> failures{0}, progress{0};
  std::vector<std::thread> threads;
  for (const Agent& agent : trainers)
    threads.emplace_back([&] { failures += train(agent, kSteps, progress); });
  for (const int third : {1, 2}) {
    for (const Deadline end = patience();
         progress < third * kTrainers * kSteps / 3 && !end.expired();)
      std::this_thread::sleep_for(1ms);
    server->signal(SIGKILL);
    EXPECT_EQ(server->wait(patience()).signal, SIGKILL);
    server.emplace(participant("Serves"));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(failures, 0) << "nobody has seen it end";
  for (const Agent& agent : trainers)  // some had finished before the last one began
    agent.rpc_sync("ps", "restore", kSteps, at::full({100'000}, static_cast<float>(kSteps)));

  // Everything that was sent has arrived, exactly once.
  const auto result =
      first.rpc_sync<std::pair<at::Tensor, int64_t>>("ps", "push", at::zeros({100'000}), kSteps);
  EXPECT_EQ(result.first.min().item<float>(), static_cast<float>(kTrainers * kSteps));
  EXPECT_EQ(result.first.max().item<float>(), static_cast<float>(kTrainers * kSteps));
  // The first server's objects are gone with it, and requests for them fail accordingly.
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { table.rpc_sync<double>("entry"); }, [&] { table.wait(); },
           [&] { first.rpc_sync<double>("ps", "entry", table); }})
    EXPECT_THAT(message_of(use),
                AllOf(HasSubstr("'ps' (process " + std::to_string(old) + " on host"),
                      ::testing::Not(HasSubstr("\n"))));
  EXPECT_NE(first.rpc_sync<int64_t>("ps", "pid"), old);
  EXPECT_EQ(first.remote<Table>("ps", "table").rpc_sync<double>("entry"), 1.5);
}

// ---- deadlines ----

// How long the calls took, as a share of their deadline: the median of several; none was too early.
double median_share(double deadline, int calls, const std::function<void()>& call) {
  std::vector<double> took;
  for (int i = 0; i < calls; ++i) {
    const Deadline begin = Deadline::seconds(0);
    EXPECT_THAT(message_of(call), HasSubstr("has not returned within"));
    took.push_back(begin.elapsed_seconds());
    EXPECT_GE(took.back(), deadline);
  }
  std::nth_element(took.begin(), took.begin() + calls / 2, took.end());
  return took[static_cast<size_t>(calls / 2)] / deadline;
}

TEST(RpcDeadlines, FireWithinATenth) {
  const ServedStore store;
  Registry registry;
  registry.add("sleep", [](double seconds) {
    for (const Deadline end = Deadline::seconds(seconds); !end.expired() && !cancelled();)
      std::this_thread::sleep_for(1ms);
  });
  Agent agent = store.agent("trainer", std::move(registry));
  Subprocess server = participant("Serves");
  agent.rpc_sync("ps", "sleep", 0.0);
  agent.rpc_sync("ps", "relay", "trainer", 0.0);
  const auto expect_in_time = [&](const char* what, double seconds, const auto& call) {
    const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds));
    const Destination to = agent.to("ps", {.timeout = timeout});
    double share = 0;
    // A machine that is busy for a moment gets another attempt.
    for (int attempt = 0; attempt < 4; ++attempt) {
      share = median_share(seconds, seconds < 0.5 ? 5 : 3, [&] { call(to); });
      if (share <= 1.1) break;
    }
    EXPECT_LE(share, 1.1) << what << ", " << seconds << " s";
    RecordProperty(what + std::to_string(seconds), std::to_string(share));
  };
  for (const double seconds : {0.1, 0.3, 1.0}) {
    // Its function sleeps for that long; it has four workers.
    expect_in_time("asleep", seconds,
                   [&](const Destination& to) { to.rpc_sync("sleep", 1.2 * seconds); });
    expect_in_time("nested", seconds,
                   [&](const Destination& to) { to.rpc_sync("relay", "trainer", 20 * seconds); });
  }
  server.signal(SIGSTOP);
  for (const Deadline end = patience(); process_state(server.pid()) != 'T' && !end.expired();)
    std::this_thread::sleep_for(1ms);
  for (const double seconds : {0.1, 0.3, 1.0})
    expect_in_time("stopped", seconds, [](const Destination& to) { to.rpc_sync("sleep", 0.0); });
  server.signal(SIGKILL);
  server.wait(patience());
}

}  // namespace
}  // namespace lockstep::inline v0::rpc::restart_mp_test
