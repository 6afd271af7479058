// Transports of several processes: the test starts itself again as its peers, which die in various
// ways.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/process_state.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/rpc/internal/transport.h"
#include "lockstep/rpc/transport_test_support.h"
#include "lockstep/store/file_store.h"
#include "lockstep/testing/network_namespaces.h"

namespace lockstep::inline v0::rpc::internal {
namespace transport_mp_test {

using namespace std::chrono_literals;

constexpr int64_t kLarge = 100'000'000;

std::shared_ptr<Store> store_at(const std::string& path) {
  return std::make_shared<FileStore>(path);
}
bool alone() {
  return ::getenv("LOCKSTEP_TEST_ALONE") != nullptr;
}

TransportOptions named(const std::string& name) {
  TransportOptions options;
  options.name = name;
  options.alone = alone();
  if (const char* listen = ::getenv("LOCKSTEP_TEST_LISTEN")) options.listen = listen;
  return options;
}

class TransportProcesses : public ::testing::TestWithParam<bool> {
 protected:
  TransportProcesses() {
    if (GetParam())
      ::setenv("LOCKSTEP_TEST_ALONE", "1", 1);
    else
      ::unsetenv("LOCKSTEP_TEST_ALONE");
    ::setenv("LOCKSTEP_TEST_STORE", (folder_ / "store").c_str(), 1);
    start_transport();
  }
  void start_transport() {
    transport_.emplace(reactor_, store_, secret(), named("test"), soon());
    transport_->start({.received =
                           [this](const std::shared_ptr<Link>& link, Incoming& message) {
                             if (received_) received_(link, message);
                           },
                       .lost = [this](const std::shared_ptr<Link>&,
                                      const std::string& why) { losses_.add(why); }});
  }
  static Subprocess participant(const std::string& name) {
    SubprocessOptions options;
    options.command = {"participant", "--gtest_also_run_disabled_tests",
                       "--gtest_filter=RpcParticipant.DISABLED_" + name};
    options.program = "/proc/self/exe";
    return Subprocess(options);
  }
  std::vector<std::string> lost(size_t count) { return losses_.wait(count); }

  TestDirectory folder_;
  std::shared_ptr<Store> store_ = store_at(folder_ / "store");
  Losses losses_;
  std::function<void(const std::shared_ptr<Link>&, Incoming&)> received_;
  Reactor reactor_{2};
  std::optional<Transport> transport_;
};

// The tests below run it in a process of its own: it echoes everything until it is killed; a
// request whose body is "go" is answered with large tensors, one after the other.
TEST(RpcParticipant, DISABLED_Serves) {
  const auto store = store_at(::getenv("LOCKSTEP_TEST_STORE"));
  Reactor reactor(2);
  const at::Tensor large = at::full({kLarge}, 7, at::kByte);
  Transport transport(reactor, store, secret(), named("server"), soon());
  transport.start(
      {.received =
           [&](const std::shared_ptr<Link>& link, Incoming& message) {
             const auto kept = std::make_shared<Incoming>(std::move(message));
             const auto body = std::make_shared<std::string>(kept->body);
             reactor.post_here(task_of([&large, link, kept, body] {
               if (*body == "go") {
                 while (link->send({MessageKind::kResponse, 1}, "", {}, {large}, Link::When::kNow))
                   if (!link->wait_for_room(Deadline::seconds(30))) return;
                 return;
               }
               if (*body == "stay away") return;  // and never fetches
               if (kept->pending) link->fetch(*kept);
               link->send({MessageKind::kResponse, kept->head.call}, *body, {}, kept->tensors,
                          Link::When::kNow);
             }));
           },
       .lost = [](const auto&, const auto&) {}});
  store->set("up", "1");
  while (true) std::this_thread::sleep_for(1h);
}

TEST(RpcParticipant, DISABLED_TakesATakenName) {
  Reactor reactor(1);
  EXPECT_THROW(Transport(reactor, store_at(::getenv("LOCKSTEP_TEST_STORE")), secret(),
                         named("test"), soon()),
               InvalidArgument);
}

TEST_P(TransportProcesses, TensorsThereAndBack) {
  Subprocess server = participant("Serves");
  std::atomic<int> pending{0}, answers{0};
  Incoming got;
  received_ = [&](const std::shared_ptr<Link>& link, Incoming& message) {
    if (message.pending) ++pending, link->fetch(message);
    got.tensors = std::move(message.tensors);
    ++answers;
  };
  const auto link = transport_->link_to("server", soon());
  const at::Tensor sent = at::randint(0, 256, {40'000'000}, at::kByte);
  for (int i = 1; i <= 5; ++i) {
    ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, "x", {}, {sent, sent.slice(0, 0, 10)},
                           Link::When::kMine));
    for (const Deadline deadline = soon(); answers < i && !deadline.expired();
         std::this_thread::yield())
      link->receive_until([&] { return answers == i; }, deadline);
    ASSERT_EQ(answers, i);
    EXPECT_TRUE(at::equal(got.tensors[0], sent));
    EXPECT_TRUE(at::equal(got.tensors[1], sent.slice(0, 0, 10)));
  }
  EXPECT_EQ(pending, alone() ? 0 : 5);
  server.signal(SIGKILL);
  EXPECT_EQ(server.wait(soon()).signal, SIGKILL);
  EXPECT_EQ(lost(1)[0], alone() ? "it closed the connection" : "its process has ended");
}

// Killed while a large message is being sent to it.
TEST_P(TransportProcesses, ServerIsKilledWhileItReceives) {
  const at::Tensor large = at::full({kLarge}, 7, at::kByte);
  for (int round = 0; round < 5; ++round) {
    Subprocess server = participant("Serves");
    std::shared_ptr<Link> link;
    link = transport_->link_to("server", soon());
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, i == 1 ? "stay away" : "x", {}, {large},
                             Link::When::kNow));
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * round));
    server.signal(SIGKILL);
    EXPECT_EQ(server.wait(soon()).signal, SIGKILL);
    lost(static_cast<size_t>(round) + 1);
    EXPECT_FALSE(link->send({MessageKind::kRequest, 1}, "x", {}, {large}, Link::When::kNow));
    // Nothing is kept for it.
    for (int i = 0; i < 60000 && large.use_count() > 1; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(large.use_count(), 1U);
    EXPECT_EQ(link->queued_bytes(), 0U);
  }
}

// Killed while this process receives, or reads its memory.
TEST_P(TransportProcesses, ServerIsKilledWhileItSends) {
  std::atomic<int> whole{0}, failed{0};
  received_ = [&](const std::shared_ptr<Link>& link, Incoming& message) {
    try {
      if (message.pending) link->fetch(message);
      EXPECT_EQ(message.tensors[0].numel(), kLarge);
      EXPECT_EQ(message.tensors[0][0].item<int>(), 7);
      EXPECT_EQ(message.tensors[0][kLarge - 1].item<int>(), 7);
      ++whole;
    } catch (const PeerLost&) {
      ++failed;
    }
  };
  for (int round = 0; round < 5; ++round) {
    Subprocess server = participant("Serves");
    const auto link = transport_->link_to("server", soon());
    const int before = whole;
    ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, "go", {}, {}, Link::When::kNow));
    for (int i = 0; i < 60000 && whole == before; ++i) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(std::chrono::milliseconds(11 * round));
    server.signal(SIGKILL);
    EXPECT_EQ(server.wait(soon()).signal, SIGKILL);
    lost(static_cast<size_t>(round) + 1);
  }
  EXPECT_GE(whole, 5);
}

TEST_P(TransportProcesses, WhoComesBackUnderItsNameIsFound) {
  uint64_t before = 0;
  for (int round = 0; round < 3; ++round) {
    Subprocess server = participant("Serves");
    const auto link = transport_->link_to("server", soon());
    EXPECT_NE(link->peer().incarnation, before);
    before = link->peer().incarnation;
    server.signal(SIGKILL);
    EXPECT_EQ(server.wait(soon()).signal, SIGKILL);
    const int pid = static_cast<int>(link->peer().pid);
    lost(static_cast<size_t>(round) + 1);
    // Its entry still exists, but no process answers.
    try {
      transport_->link_to("server", Deadline::seconds(0.2));
      FAIL();
    } catch (const Timeout& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("'server' (process " + std::to_string(pid) + " on host "),
                std::string::npos)
          << what;
      EXPECT_NE(what.find("is gone and has not come back"), std::string::npos) << what;
    }
  }
}

TEST_P(TransportProcesses, WhoIsStoppedDoesNotAnswer) {
  Subprocess server = participant("Serves");
  store_->get("up", soon());
  server.signal(SIGSTOP);
  while (process_state(server.pid()) != 'T') std::this_thread::yield();
  try {
    transport_->link_to("server", Deadline::seconds(0.5));
    FAIL();
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what()).find("did not answer"), std::string::npos) << error.what();
  }
  server.signal(SIGCONT);
  EXPECT_NE(transport_->link_to("server", soon()), nullptr);
  server.signal(SIGKILL);
  EXPECT_EQ(server.wait(soon()).signal, SIGKILL);
}

TEST_P(TransportProcesses, ANameOfALivingProcessIsNotGiven) {
  EXPECT_TRUE(participant("TakesATakenName").wait(soon()).ok());
  // Except that of a dead process.
  transport_.reset();
  start_transport();
}

// On two hosts. A host that vanishes sends nothing: the others notice it all the same, with or
// without traffic to it.
TEST(TransportHosts, OneThatVanishesIsMissed) {
  const std::string why = testing::NetworkNamespaces::unavailable();
  if (!why.empty()) GTEST_SKIP() << "no network namespaces here: " << why;
  testing::NetworkNamespaces hosts(2);
  const TestDirectory folder;
  const auto store = store_at(folder / "store");
  ::unsetenv("LOCKSTEP_TEST_ALONE");
  ::setenv("LOCKSTEP_TEST_STORE", (folder / "store").c_str(), 1);
  ::setenv("LOCKSTEP_TEST_LISTEN", hosts.address(1).c_str(), 1);
  SubprocessOptions options;
  options.command = hosts.prefix(1);
  for (const std::string& word : {std::filesystem::read_symlink("/proc/self/exe").string(),
                                  std::string("--gtest_also_run_disabled_tests"),
                                  std::string("--gtest_filter=RpcParticipant.DISABLED_Serves")})
    options.command.push_back(word);
  Subprocess server(options);

  Reactor reactor(2);
  std::atomic<int> answers{0}, pending{0};
  std::promise<std::string> lost;
  Tensors got;
  std::optional<Transport> transport;
  std::shared_ptr<Link> link;
  const at::Tensor sent = at::randint(0, 256, {10'000'000}, at::kByte);
  hosts.on(0, [&] {
    TransportOptions own;
    own.name = "test";
    own.listen = hosts.address(0);
    transport.emplace(reactor, store, secret(), own, soon());
    transport->start(
        {.received =
             [&](const auto&, Incoming& message) {
               pending += message.pending != 0;
               got = std::move(message.tensors);
               ++answers;
             },
         .lost = [&](const auto&, const std::string& reason) { lost.set_value(reason); }});
    link = transport->link_to("server", soon());
  });
  EXPECT_EQ(link->peer().host, hosts.name(1));
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, "x", {}, {sent}, Link::When::kMine));
    for (const Deadline deadline = soon(); answers < i && !deadline.expired();
         std::this_thread::yield())
      link->receive_until([&] { return answers == i; }, deadline);
    ASSERT_EQ(answers, i);
    EXPECT_TRUE(at::equal(got[0], sent));
  }
  EXPECT_EQ(pending, 0);
  hosts.cut(1);
  auto reason = lost.get_future();
  ASSERT_EQ(reason.wait_for(30s), std::future_status::ready);
  EXPECT_EQ(reason.get(), "its host does not answer any more");
  try {
    hosts.on(0, [&] { transport->link_to("server", Deadline::seconds(1)); });
    FAIL();
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what()).find("did not answer"), std::string::npos) << error.what();
  }
  transport.reset();
  server.signal(SIGKILL);
  server.wait(soon());
  ::unsetenv("LOCKSTEP_TEST_LISTEN");
}

INSTANTIATE_TEST_SUITE_P(, TransportProcesses, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "OverTcp" : "OnOneHost"; });

}  // namespace transport_mp_test
}  // namespace lockstep::inline v0::rpc::internal
