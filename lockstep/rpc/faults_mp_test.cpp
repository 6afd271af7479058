// Scripted faults of remote calls: callee, caller, owner and user of a reference, a process of a
// context, and the process that serves the store are killed and stopped, in every phase. The
// survivors learn of it in time, by an error of the right type that names the process at fault;
// nothing is kept for the victim; shutdown() ends by its deadline.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <future>
#include <map>
#include <ostream>
#include <thread>

#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/rpc/faults_test_support.h"
#include "lockstep/rpc/internal/core.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::rpc::faults_mp_test {
namespace {

using namespace std::chrono_literals;

// Applies the fault to the victim after a while.
class Later {
 public:
  Later(Part& part, double seconds)
      : thread_([&part, seconds] {
          std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
          part.hit();
        }) {}
  ~Later() { thread_.join(); }

 private:
  std::thread thread_;
};

// ---- the phases: the script of each process ----

void before_it_joined(Part& part) {
  if (part.is(kA))
    part.expect_told([&] { part.agent().to("b", {.timeout = kShort}).rpc_sync("ping"); });
  if (part.is(kC)) part.agent().rpc_sync("a", "ping");
}

// b does not answer a, which is connecting to it; then a or b is hit.
void meets_a_peer(Part& part) {
  if (part.is(kA)) {
    part.await("b is stopped");
    part.say("a knocks");
    part.expect_told([&] { part.agent().to("b", {.timeout = 3 * kShort}).rpc_sync("ping"); });
  }
  if (!part.is(kC)) return;
  part.send(kB, SIGSTOP);
  part.say("b is stopped");
  part.await("a knocks");
  // At the socket, or on its way: the result is the same for all.
  std::this_thread::sleep_for(300ms);
  part.hit();
  if (part.victim() == kB) return part.agent().rpc_sync("a", "ping");
  part.send(kB, SIGCONT);
  part.agent().rpc_sync("b", "ping");
}

// Between calls, with references in both directions.
void idle(Part& part) {
  const char* other = part.is(kA) ? "b" : "a";
  if (!part.is(kC)) {
    part.agent().rpc_sync(other, "keep", part.agent().own(std::make_shared<Count>()));
    part.expect_arrived();
  }
  part.agent().rpc_sync(part.is(kC) ? "a" : "c", "ping");
  part.say(std::string("ready/") + (part.is(kA) ? "a" : part.is(kB) ? "b" : "c"));
  for (const char* name : kNames) part.await(std::string("ready/") + name);
  if (part.is(kC)) {
    part.hit();
    part.say("it was hit");
    return;
  }
  part.await("it was hit");
  part.expect_told([&] { part.agent().to(other, {.timeout = kShort}).rpc_sync("ping"); });
  part.expect_told([&] { part.use_kept(); });
  part.expect_nothing_kept();
}

void a_function_runs(Part& part) {
  if (part.is(kA)) part.expect_told([&] { part.agent().rpc_sync("b", "wait"); });
  if (part.is(kB)) part.expect_cancelled();
}

// a reads b's memory.
void a_large_result_is_read(Part& part) {
  if (part.is(kA)) {
    part.agent().rpc_sync<at::Tensor>("b", "sevens");
    const Deadline begin = Deadline::seconds(0);
    part.agent().rpc_sync<at::Tensor>("b", "sevens");
    const double read = begin.elapsed_seconds();
    for (const double share : {0.2, 0.4, 0.6}) {
      const Later later(part, share * read);
      part.expect_told(
          [&] { EXPECT_TRUE(Part::are_sevens(part.agent().rpc_sync<at::Tensor>("b", "sevens"))); });
      if (part.killed()) break;
    }
  }
  part.await("hit");
  if (part.is(kB))
    Part::eventually("b waits for nobody", [&] { return part.agent().pending_calls().empty(); });
}

// b reads a's memory, which is a's own again, whatever happens to b.
void a_large_argument_is_read(Part& part) {
  if (part.is(kA)) {
    const Deadline begin = Deadline::seconds(0);
    EXPECT_TRUE(part.agent().rpc_sync<bool>("b", "are_sevens", part.sevens()));
    const double whole = begin.elapsed_seconds();
    {
      const Later later(part, 0.3 * whole);
      part.expect_told(
          [&] { EXPECT_TRUE(part.agent().rpc_sync<bool>("b", "are_sevens", part.sevens())); });
    }
    if (part.killed())
      Part::eventually("the tensor is a's own", [&] { return part.sevens().use_count() == 1; });
  }
  part.await("hit");
  if (part.is(kB)) {
    Part::eventually("b waits for nobody", [&] { return part.agent().pending_calls().empty(); });
    EXPECT_EQ(part.torn, 0);
  }
}

// a calls b, which calls c.
void a_nested_call_waits(Part& part) {
  if (part.is(kA)) part.expect_told([&] { part.agent().rpc_sync("b", "relay", "c"); });
  if (part.is(kB)) {
    if (part.victim() == kC)
      part.expect_noted(part.killed() ? kLost : kByDeadline, "'c'");
    else
      part.expect_noted(part.killed() ? kCancelled : kByDeadline, "'wait' on 'c'");
  }
  if (part.is(kC)) part.expect_cancelled();
}

// a passes a reference of c's to b.
void a_reference_is_passed_on(Part& part) {
  if (part.is(kB)) {
    part.agent().rpc_sync("c", "ping");
    part.say("b knows c");
    if (part.victim() == kC)
      part.expect_noted(part.killed() ? kLost : kByDeadline, "'c'");
    else
      part.expect_noted(kWell | kCancelled, "'c'");
  }
  if (part.is(kA)) {
    part.await("b knows c");
    auto count = part.agent().remote<Count>("c", "make");
    count.wait();
    const auto arrived = std::async(std::launch::async, [&] {
      part.await("b has it");
      part.expect_arrived();
      part.say("arrived");
    });
    part.expect_told([&] { part.agent().rpc_sync<int>("b", "use", count); });
    part.expect(part.victim() == kB ? kWell
                : part.killed()     ? kLost
                                    : kLate,
                "'c'", [&] { count.rpc_sync<int>("value"); });
  }
  part.await("hit");
  part.meet("references are let go");
  if (part.is(kC)) part.expect_nothing_kept();
}

void in_to_here(Part& part) {
  if (part.is(kA)) {
    const auto slow = part.agent().remote<at::Tensor>("b", "make_slowly");
    part.expect_told([&] { slow.to_here(); });
  }
  if (part.is(kB)) {
    part.expect_cancelled();
    part.expect_nothing_kept();
  }
}

// a's loss depends on b, and through it on c.
void in_a_context(Part& part) {
  if (part.is(kA)) {
    AutogradContext context(part.agent());
    part.expect_told([&] {
      const at::Tensor y = part.agent().rpc_sync<at::Tensor>("b", "forward_b", at::ones({4}));
      context.backward({y.sum()});
    });
  }
  part.await("hit");
  part.meet("the context has ended");
  // A stopped process may resume: data that is kept for a stopped a, or through a stopped b, is
  // kept.
  if (part.killed() || part.is(kA) || part.victim() == kC) part.expect_no_context();
}

void in_the_optimizers_step(Part& part) {
  if (part.is(kA)) {
    std::vector<RRef<at::Tensor>> parameters;
    for (const char* name : {"b", "c"})
      parameters.push_back(part.agent().rpc_sync<RRef<at::Tensor>>(name, "parameter"));
    DistributedOptimizer optimizer(part.agent(), parameters, {});
    AutogradContext context(part.agent());
    const at::Tensor y = part.agent().rpc_sync<at::Tensor>("b", "forward_b", at::ones({4}));
    context.backward({y.sum()});
    part.expect_told([&] { optimizer.step(context); });
    // c's own gradient is b's weight squared; its step is not undone.
    EXPECT_TRUE(parameters[1].to_here().equal(at::full({4}, 0.0f)));
  }
  part.await("hit");
  part.meet("the context has ended");
  if (part.killed()) part.expect_no_context();
  if (!part.is(kA)) part.expect_nothing_kept();
}

void in_shutdown(Part& part) {
  if (part.is(kB)) {
    part.say("b goes");
    part.agent().shutdown(kLong);
  }
  if (!part.is(kC)) return;
  part.await_left("b");
  part.hit();
}

// ---- the table ----

const std::vector<Fault>& all_faults() {
  static const std::vector<Fault> faults{
      {"BeforeItJoined", kB, kLate, kLate, "^rpc: 'b' has not come within", before_it_joined, true},
      {"AsItMeetsAPeer", kB, kLate, kLate,
       "^rpc: 'b' .process [0-9]+ on host .* (is gone and has not come back|did not answer) within",
       meets_a_peer},
      {"AsItMeetsAPeer", kA, 0, 0, "", meets_a_peer},
      {"Idle", kB, kLost | kLate, kLate, "'b'", idle},
      {"Idle", kA, kLost | kLate, kLate, "'a'", idle},
      {"WhileItsFunctionRuns", kB, kLost, kLate, "'wait' on 'b'.* .process [0-9]+ on host",
       a_function_runs},
      {"WhileItsFunctionRuns", kA, 0, 0, "", a_function_runs},
      {"WhileALargeResultIsRead", kB, kWell | kLost, kWell | kLate, "'b'", a_large_result_is_read},
      {"WhileALargeResultIsRead", kA, kWell, kWell, "", a_large_result_is_read},
      {"WhileALargeArgumentIsRead", kB, kWell | kLost, kWell | kLate, "'b'",
       a_large_argument_is_read},
      {"WhileALargeArgumentIsRead", kA, kWell, kWell, "", a_large_argument_is_read},
      {"WhileANestedCallWaits", kC, kRemote, kRemote | kLate, "'relay' on 'b'",
       a_nested_call_waits},
      {"WhileANestedCallWaits", kB, kLost, kLate, "'relay' on 'b'", a_nested_call_waits},
      {"WhileANestedCallWaits", kA, 0, 0, "", a_nested_call_waits},
      {"WhileAReferenceIsPassedOn", kC, kRemote, kRemote | kLate, "'use' on 'b'",
       a_reference_is_passed_on},
      {"WhileAReferenceIsPassedOn", kB, kLost, kLate, "'use' on 'b'", a_reference_is_passed_on},
      {"WhileAReferenceIsPassedOn", kA, 0, 0, "", a_reference_is_passed_on},
      {"InToHere", kB, kLost, kLate, "'rpc.fetch' on 'b'", in_to_here},
      {"InToHere", kA, 0, 0, "", in_to_here},
      {"InForward", kB, kLost, kLate, "'forward_b' on 'b'", in_a_context},
      {"InForward", kC, kRemote, kRemote | kLate, "'forward_b' on 'b'", in_a_context},
      {"InForward", kA, 0, 0, "", in_a_context},
      {"InBackward", kB, kLost, kLate, "'rpc.backward' on 'b'", in_a_context},
      {"InBackward", kC, kRemote, kRemote | kLate, "'rpc.backward' on 'b'", in_a_context},
      {"InBackward", kA, 0, 0, "", in_a_context},
      {"InTheOptimizersStep", kB, kLost, kLate, "'optimizer.step' on 'b'", in_the_optimizers_step},
      {"InTheOptimizersStep", kA, 0, 0, "", in_the_optimizers_step},
      {"InShutdown", kB, 0, 0, "", in_shutdown, false, true},
  };
  return faults;
}

struct Case {
  const Fault* fault;
  int signal;
  std::string name() const {
    return std::string(1, static_cast<char>(kNames[fault->victim][0] - 'a' + 'A')) +
           (signal == SIGKILL ? "IsKilled" : "IsStopped") + fault->phase;
  }
  friend std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name(); }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Fault& fault : all_faults())
    for (const int signal : {SIGKILL, SIGSTOP}) all.push_back({&fault, signal});
  return all;
}

class RpcFaults : public ::testing::TestWithParam<Case> {};

TEST_P(RpcFaults, WhoSurvivesIsToldInTime) {
  const Case one = GetParam();
  testing::expect_lone_ranks(kRoles,
                             [&one] {
                               const testing::Holdings before = testing::holdings();
                               {
                                 Part part(*one.fault, one.signal);
                                 part.join();
                                 one.fault->script(part);
                                 part.shut_down();
                               }
                               const testing::Holdings after = testing::holdings_after(before);
                               EXPECT_LE(after.fds, before.fds);
                               EXPECT_LE(after.threads, before.threads);
                             },
                             {{one.fault->victim, one.signal}});
}

INSTANTIATE_TEST_SUITE_P(, RpcFaults, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name(); });

// ---- who serves the store: rank 0 of init(comm) ----

struct StoreCase {
  int signal;
  bool in_shutdown;
};

class RpcStoreFaults : public ::testing::TestWithParam<StoreCase> {};

TEST_P(RpcStoreFaults, TheOthersGoOnWithWhomTheyKnow) {
  const auto [signal, in_shutdown] = GetParam();
  const bool killed = signal == SIGKILL;
  const auto told = [](const char* what, const std::function<void()>& body) -> std::string {
    const Deadline begin = Deadline::seconds(0);
    std::string text = "nothing went wrong";
    try {
      body();
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_LT(begin.elapsed_seconds(), 2 + kSlack) << what << ": " << text;
    return text;
  };
  testing::expect_lone_ranks(
      3,
      [&] {
        std::optional<Communicator> comm = lockstep::init({});
        const int rank = comm->rank();
        std::atomic<bool> go{false};
        Registry registry;
        registry.add("ping", [] {});
        registry.add("end", [&] {
          ::kill(::getpid(), signal);
          while (true) std::this_thread::sleep_for(1h);
        });
        registry.add("go", [&] { go = true; });
        Agent agent = init(*comm, std::move(registry), {.timeout = killed ? 20s : 1s});
        comm.reset();
        if (rank == 1 && !in_shutdown) {
          agent.rpc_sync("worker2", "ping");
          EXPECT_THAT(told("a call", [&] { agent.rpc_sync("worker0", "end"); }),
                      ::testing::HasSubstr("'end' on 'worker0'"));
          EXPECT_EQ(told("a link that is there", [&] { agent.rpc_sync("worker2", "go"); }),
                    "nothing went wrong");
        }
        if (rank == 2 && !in_shutdown) {
          Part::eventually("rank 0 is hit", [&] { return go.load(); });
          // No process can tell where worker1 is.
          EXPECT_THAT(told("a new link", [&] { agent.rpc_sync("worker1", "ping"); }),
                      ::testing::ContainsRegex(killed ? "the process that serves the store .*ended"
                                                      : "its process is stopped or unreachable"));
        }
        if (rank == 0 && in_shutdown) ::kill(::getpid(), signal);
        if (rank == 0) agent.shutdown(40s);
        EXPECT_THAT(told("shutdown()", [&] { agent.shutdown(2s); }),
                    ::testing::ContainsRegex(killed ? "the process that serves the store .*ended"
                                                    : "stopped or unreachable|does not answer"));
      },
      {{0, signal}});
}

INSTANTIATE_TEST_SUITE_P(, RpcStoreFaults,
                         ::testing::Values(StoreCase{SIGKILL, false}, StoreCase{SIGSTOP, false},
                                           StoreCase{SIGKILL, true}, StoreCase{SIGSTOP, true}),
                         [](const auto& info) {
                           return std::string(info.param.signal == SIGKILL ? "IsKilled"
                                                                           : "IsStopped") +
                                  (info.param.in_shutdown ? "InShutdown" : "Idle");
                         });

}  // namespace
}  // namespace lockstep::inline v0::rpc::faults_mp_test
