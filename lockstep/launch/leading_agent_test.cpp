// The first agent of a job during a flood of unauthenticated connections.
#include "lockstep/launch/leading_agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/joined_agent.h"

namespace lockstep::inline v0::launch {
namespace leading_agent_test {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Of the agents' process: unauthenticated connections may use half of them.
constexpr rlim_t kDescriptors = 512;
constexpr size_t kAtOnce = 600;
constexpr int kMost = 100'000;  // connections at most, however long it takes the agent to join

// Limits this process's descriptors during its lifetime.
class DescriptorLimit {
 public:
  DescriptorLimit() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{std::min(kDescriptors, before_.rlim_max), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

// Connects from another address than the agents'. Every third connection talks, the others are
// silent; the latest ones stay open. Continues until it is told that the agent has joined, and a
// while longer. Uses system calls only, because it runs in a forked child.
[[noreturn]] void storm(int port_from, int went_to) {
  uint16_t port = 0;
  if (::read(port_from, &port, sizeof port) != sizeof port) ::_exit(1);
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port);
  std::array<int, kAtOnce> open;
  open.fill(-1);
  int last = kMost;
  for (int i = 0; i < last; ++i) {
    int& place = open[static_cast<size_t>(i) % kAtOnce];
    if (place >= 0) ::close(place);
    place = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::bind(place, reinterpret_cast<const sockaddr*>(&from), sizeof from) != 0 ||
        ::connect(place, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
      ::_exit(2);
    if (i % 3 == 0) ::send(place, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
    if (i + 1 == kAtOnce && ::write(went_to, "", 1) != 1) ::_exit(3);
    pollfd joined{port_from, POLLIN, 0};
    if (last == kMost && ::poll(&joined, 1, 0) > 0) last = i + 2 * static_cast<int>(kAtOnce);
  }
  ::_exit(last < kMost ? 0 : 4);
}

LaunchOptions options_of(int number, const Secret& secret) {
  LaunchOptions options;
  options.command = {"true"};
  options.nodes.emplace();
  options.nodes->nodes = 2;
  options.nodes->number = number;
  options.nodes->secret = secret;
  return options;
}

void turn(Peers& peers) {
  PollSet polls;
  peers.watch(polls);
  polls.wake_at(std::chrono::steady_clock::now() + milliseconds(50));
  polls.wait();
}

TEST(LeadingAgent, AStormOfStrangersLocksNoAgentOut) {
  Pipe port = make_pipe(), went = make_pipe();
  const pid_t stormer = ::fork();
  ASSERT_GE(stormer, 0);
  if (stormer == 0) {
    port.write.reset();
    storm(port.read.get(), went.write.get());
  }
  went.write.reset();

  const DescriptorLimit limit;
  const Secret secret = Secret::generate();
  const LaunchOptions first = options_of(0, secret), second = options_of(1, secret);
  const HostPort endpoint{"127.0.0.1", PortReservation(std::nullopt).port()};
  UniqueFd said(::memfd_create("said", MFD_CLOEXEC));
  Console out(STDOUT_FILENO), err(said.get());
  LeadingAgent leader(first, {.agent = "first"}, nullptr, endpoint.host, endpoint.port, out, err);
  const Deadline deadline = Deadline::seconds(100);
  const auto number =
      parse_int(TcpStore(endpoint, secret, deadline).get(kAgentPortKey, deadline), 1, 65535);
  const auto listening = static_cast<uint16_t>(number.value());
  ASSERT_EQ(::write(port.write.get(), &listening, sizeof listening), 2);

  // It joins during the flood, and later connections do not displace it.
  std::atomic<bool> over = false;
  std::string trouble;
  std::optional<NodePlan> plan;
  std::thread other([&] {
    try {
      char byte = 0;
      if (::read(went.read.get(), &byte, 1) != 1) throw SystemError("the storm", 0);
      JoinedAgent agent(second, {.agent = "second"}, endpoint, deadline);
      while (!over && agent.lost().empty()) turn(agent);
      plan = agent.plan();
      trouble = agent.lost();
    } catch (const Error& error) {
      trouble = error.what();
    }
  });
  siginfo_t end{};
  bool held = false;
  while (!deadline.expired() && end.si_pid == 0) {
    turn(leader);
    if (leader.plan()) port.write.reset();
    held = held || leader.given_up_at();
    ::waitid(P_PID, static_cast<id_t>(stormer), &end, WEXITED | WNOHANG | WNOWAIT);
  }
  over = true;
  other.join();
  ::kill(stormer, SIGKILL);
  ::waitpid(stormer, nullptr, 0);
  err.flush();

  EXPECT_EQ(end.si_code, CLD_EXITED);
  EXPECT_EQ(end.si_status, 0) << "it joined in the midst of the storm";
  EXPECT_EQ(trouble, "");
  ASSERT_TRUE(leader.plan() && plan);
  EXPECT_EQ(plan->world_size, 2);
  EXPECT_FALSE(held) << "nobody else can lead, so its ranks may run however long it stands still";
  EXPECT_EQ(leader.plan()->generation, 0);
  std::string text(65536, '\0');
  text.resize(static_cast<size_t>(::pread(said.get(), text.data(), text.size(), 0)));
  EXPECT_THAT(text, HasSubstr("[lockstep] closed the connection from 127.0.0.2:"));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 6) << text;
}

}  // namespace leading_agent_test
}  // namespace lockstep::inline v0::launch
