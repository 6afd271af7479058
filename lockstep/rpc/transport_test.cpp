// Transports of one process, which communicate over sockets as those of several processes do.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/rpc/internal/directory.h"
#include "lockstep/rpc/internal/transport.h"
#include "lockstep/rpc/transport_test_support.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::inline v0::rpc::internal {
namespace transport_test {

using namespace std::chrono_literals;

// A transport that passes received messages to a function, and records lost links.
class End {
 public:
  using Received = std::function<void(const std::shared_ptr<Link>&, Incoming&)>;
  End(const std::shared_ptr<Store>& store, const std::string& name, Received received = nullptr,
      TransportOptions options = {}, const Secret& its_secret = secret())
      : reactor_(2) {
    options.name = name;
    transport_.emplace(reactor_, store, its_secret, options, soon());
    transport_->start({.received =
                           [received](const std::shared_ptr<Link>& link, Incoming& message) {
                             if (received) received(link, message);
                           },
                       .lost = [this](const std::shared_ptr<Link>&,
                                      const std::string& why) { losses_.add(why); }});
  }
  ~End() { transport_.reset(); }
  Transport& operator*() { return *transport_; }
  Transport* operator->() { return &*transport_; }
  Reactor& reactor() { return reactor_; }
  void end() { transport_.reset(); }
  // The reasons of `count` links that were lost.
  std::vector<std::string> lost(size_t count) { return losses_.wait(count); }

 private:
  Reactor reactor_;
  Losses losses_;
  std::optional<Transport> transport_;
};

// Sends back each message.
void echo(const std::shared_ptr<Link>& link, Incoming& message) {
  if (message.pending) link->fetch(message);
  link->send({MessageKind::kResponse, message.head.call}, message.body, "", message.tensors,
             Link::When::kNow);
}

class Waiting {
 public:
  void count() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  bool until(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 60s, [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Waits like a caller: receives itself or, where another thread receives, until that one has.
bool wait_for(const std::shared_ptr<Link>& link, const std::function<bool()>& done) {
  for (const Deadline deadline = soon(); !deadline.expired(); std::this_thread::yield())
    if (link->receive_until(done, deadline) || done()) return true;
  return false;
}

TEST(Transport, AMessageThereAndBack) {
  auto store = std::make_shared<HashStore>();
  End server(store, "server", echo);
  std::string body;
  std::atomic<bool> done{false};
  End client(store, "client", [&](const std::shared_ptr<Link>&, Incoming& message) {
    body = std::string(message.head.kind == MessageKind::kResponse ? message.body : "");
    done = true;
  });
  const auto link = client->link_to("server", soon());
  EXPECT_EQ(link->peer().name, "server");
  EXPECT_EQ(link->peer().incarnation, server->self().incarnation);
  for (int i = 0; i < 100; ++i) {
    done = false;
    const std::string sent = "message " + std::to_string(i);
    ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, sent.substr(0, 3), sent.substr(3), {},
                           Link::When::kMine));
    EXPECT_TRUE(wait_for(link, [&] { return done.load(); }));
    EXPECT_EQ(body, sent);
  }
}

TEST(Transport, SmallMessagesOfManyThreadsComeInOrder) {
  constexpr int kThreads = 8, kEach = 12500;
  auto store = std::make_shared<HashStore>();
  std::map<int, int> next;
  std::atomic<int> wrong{0};
  Waiting all;
  End server(store, "server", [&](const std::shared_ptr<Link>& link, Incoming& message) {
    const int thread = static_cast<int>(message.head.call >> 32),
              number = static_cast<int>(message.head.call);
    const std::string expected = std::to_string(thread) + ":" + std::to_string(number);
    if (message.body != expected || next[thread]++ != number - 1) ++wrong;
    link->send({MessageKind::kResponse, message.head.call}, message.body, {}, {}, Link::When::kNow);
  });
  std::map<int, int> back;
  std::atomic<int> answers{0};
  End client(store, "client", [&](const std::shared_ptr<Link>&, Incoming& message) {
    const int thread = static_cast<int>(message.head.call >> 32),
              number = static_cast<int>(message.head.call);
    if (back[thread]++ != number - 1) ++wrong;
    if (++answers == kThreads * kEach) all.count();
  });
  const auto link = client->link_to("server", soon());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 1; i <= kEach; ++i) {
        const std::string body = std::to_string(t) + ":" + std::to_string(i);
        const auto when = i % 3 == 0 ? Link::When::kNow : Link::When::kSoon;
        EXPECT_TRUE(link->send(
            {MessageKind::kRequest, static_cast<uint64_t>(t) << 32 | static_cast<uint64_t>(i)},
            body, {}, {}, when));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(all.until(1));
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(link->queued_bytes(), 0U);
}

// Echoes tensors of all sizes; returns how many were sent by address, in each direction.
std::pair<int, int> echo_tensors(bool alone) {
  auto store = std::make_shared<HashStore>();
  std::atomic<int> there{0}, back{0};
  TransportOptions options;
  options.alone = alone;
  End server(
      store, "server",
      [&](const std::shared_ptr<Link>& link, Incoming& message) {
        there += message.pending != 0;
        echo(link, message);
      },
      options);
  Tensors got;
  std::atomic<bool> done{false};
  End client(
      store, "client",
      [&](const std::shared_ptr<Link>& link, Incoming& message) {
        back += message.pending != 0;
        if (message.pending) link->fetch(message);
        got = std::move(message.tensors);
        done = true;
      },
      options);
  const auto link = client->link_to("server", soon());
  for (const int64_t bytes : {0, 1, 100, 4095, 4096, 70000, 255 << 10, (256 << 10) - 1, 256 << 10,
                              (1 << 20) + 3, 40000000}) {
    const at::Tensor sent = at::randint(0, 256, {bytes}, at::kByte);
    done = false;
    EXPECT_TRUE(link->send({MessageKind::kRequest, 1}, "b", {}, {sent, sent.slice(0, 0, bytes / 2)},
                           Link::When::kMine));
    EXPECT_TRUE(wait_for(link, [&] { return done.load(); }));
    EXPECT_EQ(got.size(), 2U);
    if (got.size() != 2) break;
    EXPECT_TRUE(at::equal(got[0], sent)) << bytes;
    EXPECT_TRUE(at::equal(got[1], sent.slice(0, 0, bytes / 2))) << bytes;
  }
  // All named tensors have been taken: no memory is kept.
  EXPECT_TRUE(link->wait_for_room(soon()));
  for (int i = 0; i < 1000 && link->queued_bytes() > 0; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(link->queued_bytes(), 0U);
  return {there, back};
}

TEST(Transport, LargeTensorsAreReadFromTheirOwner) {
  EXPECT_EQ(echo_tensors(false), std::make_pair(3, 3));
}

TEST(Transport, TensorsOverTcp) {
  EXPECT_EQ(echo_tensors(true), std::make_pair(0, 0));
}

TEST(Transport, TensorsArriveDenseAndWithoutGradients) {
  auto store = std::make_shared<HashStore>();
  End server(store, "server", echo);
  Tensors got;
  std::atomic<bool> done{false};
  End client(store, "client", [&](const std::shared_ptr<Link>& link, Incoming& message) {
    if (message.pending) link->fetch(message);
    got = std::move(message.tensors);
    done = true;
  });
  const auto link = client->link_to("server", soon());
  const at::Tensor base = at::arange(600 * 500, at::kFloat).view({600, 500});
  const at::Tensor complex = at::complex(base, base + 1);
  const Tensors sent = {base.t(), base.slice(1, 3, 400, 7), complex.conj(),
                        base.expand({2, 600, 500}), base.clone().requires_grad_()};
  ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, "", {}, sent, Link::When::kMine));
  ASSERT_TRUE(wait_for(link, [&] { return done.load(); }));
  ASSERT_EQ(got.size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_TRUE(at::equal(got[i], sent[i].detach())) << i;
    EXPECT_TRUE(got[i].is_contiguous());
    EXPECT_FALSE(got[i].requires_grad());
  }
}

TEST(Transport, RefusesToSendWhatCannotTravel) {
  auto store = std::make_shared<HashStore>();
  TransportOptions options;
  options.limits.message_bytes = 1000;
  std::atomic<int> came{0};
  End server(store, "server", [&](const auto&, Incoming&) { ++came; }),
      client(store, "client", nullptr, options);
  const auto link = client->link_to("server", soon());
  const auto send = [&](const Tensors& tensors, std::string_view body = {}) {
    return link->send({MessageKind::kRequest, 1}, body, {}, tensors, Link::When::kNow);
  };
  EXPECT_THROW(send({at::Tensor()}), InvalidArgument);
  EXPECT_THROW(send({at::ones({3}).to_sparse()}), InvalidArgument);
  EXPECT_THROW(send({at::quantize_per_tensor(at::ones({3}), 0.1, 0, at::kQInt8)}), InvalidArgument);
  EXPECT_THROW(send({at::empty({3}, at::TensorOptions().device(at::kMeta))}), InvalidArgument);
  EXPECT_THROW(send({at::ones({1001}, at::kByte)}), InvalidArgument);
  EXPECT_THROW(send({at::ones({600}, at::kByte), at::ones({600}, at::kByte)}), InvalidArgument);
  EXPECT_THROW(send({}, std::string(kMostBody + 1, 'x')), InvalidArgument);
  EXPECT_THROW(send(Tensors(kMostTensors + 1, at::ones({}))), InvalidArgument);
  EXPECT_EQ(link->queued_bytes(), 0U);
  EXPECT_TRUE(send({}));
  for (int i = 0; i < 60000 && came == 0; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(came, 1);
}

// Any receiver takes responses: of two callers, one receives for both, and then the leader does.
TEST(Transport, CallersReceiveForEachOther) {
  auto store = std::make_shared<HashStore>();
  End server(store, "server", echo);
  constexpr int kThreads = 4, kEach = 2000;
  std::array<std::atomic<int>, kThreads> answers{};
  End client(store, "client", [&](const std::shared_ptr<Link>& link, Incoming& message) {
    link->calls.fetch_sub(1);
    answers[message.head.call - 1].fetch_add(1);
    answers[message.head.call - 1].notify_all();
  });
  const auto link = client->link_to("server", soon());
  std::vector<std::thread> threads;
  std::atomic<int> own{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      auto& mine = answers[static_cast<size_t>(t)];
      for (int i = 0; i < kEach; ++i) {
        link->calls.fetch_add(1);
        EXPECT_TRUE(link->send({MessageKind::kRequest, static_cast<uint64_t>(t) + 1}, "x", {}, {},
                               Link::When::kMine));
        if (link->receive_until([&] { return mine.load() == i + 1; }, soon()))
          ++own;
        else
          mine.wait(i);
        ASSERT_EQ(mine.load(), i + 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(own, 0);
}

// Messages without a receiving caller are the leader's, also after one received.
TEST(Transport, TheLeaderReceivesAgain) {
  auto store = std::make_shared<HashStore>();
  End server(store, "server", echo);
  Waiting answers;
  std::atomic<int> count{0};
  End client(store, "client", [&](const std::shared_ptr<Link>&, Incoming&) {
    ++count;
    answers.count();
  });
  const auto link = client->link_to("server", soon());
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, "x", {}, {}, Link::When::kMine));
    EXPECT_TRUE(wait_for(link, [&] { return count == 2 * i + 1; }));
    ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, "x", {}, {},
                           i % 2 ? Link::When::kNow : Link::When::kSoon));
    ASSERT_TRUE(answers.until(2 * i + 2));
  }
  // Also where it was sent by a caller that then did not receive, and that the other end has left.
  ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, "x", {}, {}, Link::When::kMine));
  EXPECT_TRUE(wait_for(link, [&] { return count == 401; }));
  ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, "x", {}, {}, Link::When::kMine));
  ASSERT_TRUE(answers.until(402));
  EXPECT_TRUE(link->receive_until([&] { return true; }, soon()));
  server.end();
  EXPECT_EQ(client.lost(1), std::vector<std::string>{"it closed the connection"});
}

TEST(Transport, ReceivingEndsAtTheDeadlineAndWithTheLink) {
  auto store = std::make_shared<HashStore>();
  End server(store, "server"), client(store, "client");
  const auto link = client->link_to("server", soon());
  for (const double seconds : {0.0, 0.01, 0.12}) {
    const auto began = Deadline::Clock::now();
    EXPECT_FALSE(link->receive_until([] { return false; }, Deadline::seconds(seconds)));
    EXPECT_GE(Deadline::Clock::now() - began, std::chrono::duration<double>(seconds));
  }
  std::thread receives([&] { EXPECT_FALSE(link->receive_until([] { return false; }, soon())); });
  std::this_thread::sleep_for(20ms);
  link->close("no more");
  receives.join();
  EXPECT_EQ(client.lost(1), std::vector<std::string>{"no more"});
  EXPECT_FALSE(link->send({MessageKind::kRequest, 1}, "x", {}, {}, Link::When::kNow));
  EXPECT_EQ(client->living_link_to("server"), nullptr);
  server.lost(1);
}

// A message whose tensors are not taken keeps its room; a lost link releases everything.
TEST(Transport, WhatWaitsIsBounded) {
  auto store = std::make_shared<HashStore>();
  std::mutex mutex;
  std::vector<std::pair<std::shared_ptr<Link>, Incoming>> got;
  Waiting arrived;
  End server(store, "server", [&](const std::shared_ptr<Link>& link, Incoming& message) {
    const std::lock_guard lock(mutex);
    got.emplace_back(link, std::move(message));
    arrived.count();
  });
  TransportOptions options;
  options.limits.queued_bytes = 1 << 20;
  End client(store, "client", nullptr, options);
  const auto link = client->link_to("server", soon());
  const at::Tensor large = at::ones({1 << 20}, at::kByte);
  for (int i = 1; i <= 3; ++i)
    ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, "x", {}, {large}, Link::When::kNow));
  ASSERT_TRUE(arrived.until(3));
  EXPECT_GE(large.use_count(), 4U);
  EXPECT_EQ(link->queued_bytes(), 3U << 20);
  EXPECT_FALSE(link->wait_for_room(Deadline::seconds(0.02)));
  std::thread takes([&] {
    std::this_thread::sleep_for(20ms);
    got[0].first->fetch(got[0].second);
    got[1].first->drop(got[1].second.pending);
  });
  EXPECT_FALSE(link->wait_for_room(Deadline::seconds(0.2)));
  takes.join();
  EXPECT_TRUE(at::equal(got[0].second.tensors[0], large));
  for (int i = 0; i < 60000 && link->queued_bytes() > 1U << 20; ++i)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(link->queued_bytes(), 1U << 20);
  got[2].first->drop(got[2].second.pending);
  EXPECT_TRUE(link->wait_for_room(soon()));
  // The same for a message that was never taken.
  ASSERT_TRUE(link->send({MessageKind::kRequest, 1}, "x", {}, {large}, Link::When::kNow));
  ASSERT_TRUE(arrived.until(4));
  link->close("enough");
  client.lost(1);
  EXPECT_EQ(large.use_count(), 1U);
  EXPECT_EQ(link->queued_bytes(), 0U);
  EXPECT_THROW(got[3].first->fetch(got[3].second), PeerLost);
  got[3].first->drop(got[3].second.pending);
}

TEST(Transport, ANameThatIsTakenIsRefusedAndFreeAgainAfterwards) {
  auto store = std::make_shared<HashStore>();
  auto first = std::make_unique<End>(store, "ps");
  try {
    End second(store, "ps");
    FAIL() << "the name was given twice";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("'ps' (process"), std::string::npos) << error.what();
  }
  End client(store, "client");
  const auto link = client->link_to("ps", soon());
  const uint64_t before = link->peer().incarnation;
  first->end();
  EXPECT_EQ(client.lost(1), std::vector<std::string>{"it closed the connection"});
  try {
    client->link_to("ps", Deadline::seconds(0.1));
    FAIL();
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what()).find("'ps' has not come"), std::string::npos)
        << error.what();
  }
  std::thread comes_back([&] {
    std::this_thread::sleep_for(50ms);
    first = std::make_unique<End>(store, "ps");
  });
  const auto again = client->link_to("ps", soon());
  comes_back.join();
  EXPECT_NE(again->peer().incarnation, before);
  EXPECT_EQ(client->link_to("ps", soon()), again);
}

TEST(Transport, NamesAreChecked) {
  auto store = std::make_shared<HashStore>();
  EXPECT_THROW(End(store, ""), InvalidArgument);
  EXPECT_THROW(End(store, std::string(201, 'a')), InvalidArgument);
  EXPECT_THROW(End(store, "a\nb"), InvalidArgument);
  End client(store, "client");
  EXPECT_THROW(client->link_to("", soon()), InvalidArgument);
}

// Handlers may use the transport itself: none is called before its maker has it.
TEST(Transport, WhoComesBeforeItStartsWaits) {
  const auto store = std::make_shared<HashStore>();
  End client(store, "client");
  Reactor reactor(2);
  std::atomic<int> received{0};
  Transport late(reactor, store, secret(), {.name = "late"}, soon());
  auto link = std::async(std::launch::async, [&] {
    const auto made = client->link_to("late", soon());
    return made->send({MessageKind::kRequest, 1}, "x", {}, {}, Link::When::kNow);
  });
  late.start({.received = [&](const auto&, Incoming&) { ++received; },
              .lost = [](const auto&, const auto&) {}});
  EXPECT_TRUE(link.get());
  for (const Deadline deadline = soon(); received == 0 && !deadline.expired();)
    std::this_thread::yield();
  EXPECT_EQ(received, 1);
}

// A connection that can never succeed is not retried until the deadline; a network that is not
// there yet is.
TEST(Transport, AnAddressThatIsNeverReachedIsToldAtOnce) {
  const auto store = std::make_shared<HashStore>();
  End client(store, "client");
  Entry far;
  far.peer = {"far", 4711, 1, "elsewhere"};
  far.host_identity = "elsewhere";
  far.tcp = {"[fe80::1]:9"};  // without an interface
  store->set(entry_key("far"), far.encode());
  for (const uint64_t only : {uint64_t{0}, far.peer.incarnation})
    EXPECT_THROW(client->link_to("far", Deadline::seconds(600), only), SystemError);
  far.tcp = {"224.0.0.1:9", "[fe80::1]:9"};  // "Network is unreachable"
  store->set(entry_key("far"), far.encode());
  EXPECT_THROW(client->link_to("far", Deadline::seconds(0.2), far.peer.incarnation), Timeout);
  // On this host it may return, and then over another socket.
  far.host_identity = host_identity();
  far.local = "lockstep-rpc-that-nobody-has";
  far.tcp = {"[fe80::1]:9"};
  store->set(entry_key("far"), far.encode());
  EXPECT_THROW(client->link_to("far", Deadline::seconds(0.2)), Timeout);
}

TEST(Transport, WhoHasNoDescriptorForAMomentTriesAgain) {
  if (kSanitized)
    GTEST_SKIP() << "UndefinedBehaviorSanitizer wants a descriptor to look at an object";
  const auto store = std::make_shared<HashStore>();
  End client(store, "client"), server(store, "server");
  {
    const FewDescriptors none(0);
    EXPECT_THROW(client->link_to("server", Deadline::seconds(0.2)), Timeout);
  }
  EXPECT_TRUE(client->link_to("server", soon()));
}

TEST(Transport, CallersShareOneAttempt) {
  auto store = std::make_shared<HashStore>();
  End client(store, "client");
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<Link>> links(8);
  for (auto& link : links) threads.emplace_back([&] { link = client->link_to("late", soon()); });
  // A call with a shorter deadline does not affect the others.
  EXPECT_THROW(client->link_to("late", Deadline::seconds(0.05)), Timeout);
  End late(store, "late");
  for (auto& thread : threads) thread.join();
  for (const auto& link : links) EXPECT_EQ(link, links[0]);
}

TEST(Transport, CallsItself) {
  auto store = std::make_shared<HashStore>();
  std::atomic<bool> done{false};
  End only(store, "only", [&](const std::shared_ptr<Link>& link, Incoming& message) {
    if (message.head.kind == MessageKind::kRequest)
      echo(link, message);
    else
      done = true;
  });
  const auto link = only->link_to("only", soon());
  ASSERT_TRUE(
      link->send({MessageKind::kRequest, 1}, "x", {}, {at::ones({1 << 20})}, Link::When::kMine));
  EXPECT_TRUE(wait_for(link, [&] { return done.load(); }));
}

}  // namespace transport_test
}  // namespace lockstep::inline v0::rpc::internal
