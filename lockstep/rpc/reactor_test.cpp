#include "lockstep/rpc/internal/reactor.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "lockstep/core/unique_fd.h"
#include "lockstep/rpc/internal/timed_slots.h"

namespace lockstep::inline v0::rpc::internal {
namespace reactor_test {

using namespace std::chrono_literals;
constexpr auto kLong = 60s;

Reactor::Clock::time_point soon() {
  return Reactor::Clock::now() + kLong;
}

struct Pair {
  UniqueFd mine, theirs;
  Pair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    mine = UniqueFd(fds[0]);
    theirs = UniqueFd(fds[1]);
  }
  void say(char c) const { EXPECT_EQ(::send(theirs.get(), &c, 1, MSG_NOSIGNAL), 1); }
};

std::string all_of(int fd) {
  std::string text(100, '\0');
  const ssize_t n = ::recv(fd, text.data(), text.size(), MSG_DONTWAIT);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

TEST(Reactor, RunsTasksInOrderOfComing) {
  Reactor reactor(1);
  std::vector<int> order;
  std::promise<void> done;
  // A single worker: the others queue behind the first.
  for (int i = 0; i < 1000; ++i) {
    reactor.post(task_of([&, i] {
      order.push_back(i);
      if (i == 999) done.set_value();
    }));
  }
  ASSERT_EQ(done.get_future().wait_for(kLong), std::future_status::ready);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Reactor, WorkersServeAtATimeAndNoMore) {
  constexpr int kWorkers = 3;
  Reactor reactor(kWorkers);
  std::atomic<int> inside{0}, most{0}, ended{0};
  std::promise<void> go, all;
  const std::shared_future<void> may_go = go.get_future().share();
  for (int i = 0; i < 10; ++i) {
    reactor.post(task_of([&, may_go] {
      const int now = ++inside;
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      may_go.wait();
      --inside;
      if (++ended == 10) all.set_value();
    }));
  }
  while (inside < kWorkers) std::this_thread::yield();
  // All threads are busy; the sockets and timers are nevertheless served.
  Pair pair;
  std::promise<char> heard;
  reactor.watch(pair.mine.get(), EPOLLIN,
                [&](uint32_t) { heard.set_value(all_of(pair.mine.get())[0]); });
  pair.say('a');
  EXPECT_EQ(heard.get_future().get(), 'a');
  std::promise<void> rung;
  reactor.at(Reactor::Clock::now(), task_of([&] { rung.set_value(); }));
  EXPECT_EQ(rung.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_TRUE(reactor.busy());
  go.set_value();
  ASSERT_EQ(all.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(most, kWorkers);
  reactor.forget(pair.mine.get());
}

// Except where another thread happens to arrive first.
TEST(Reactor, ALeaderServesWhatItReceives) {
  Reactor reactor(2);
  Pair pair;
  std::optional<std::promise<std::pair<std::thread::id, std::thread::id>>> both;
  reactor.watch(pair.mine.get(), EPOLLIN, [&](uint32_t) {
    all_of(pair.mine.get());
    const auto leader = std::this_thread::get_id();
    reactor.post_here(
        task_of([&, leader] { both->set_value({leader, std::this_thread::get_id()}); }));
  });
  int same = 0;
  for (int i = 0; i < 200; ++i) {
    both.emplace();
    auto result = both->get_future();
    pair.say('a');
    const auto [leader, server] = result.get();
    same += leader == server;
  }
  EXPECT_GT(same, 100);
  reactor.forget(pair.mine.get());
}

// Every byte is handled though one of two threads is always elsewhere, and two handlers never run
// at once.
TEST(Reactor, AHandlerRunsOnceAtATimeAndMissesNothing) {
  Reactor reactor(3);
  Pair pair;
  std::atomic<int> inside{0}, bytes{0};
  constexpr int kBytes = 20000;
  std::promise<void> done;
  reactor.watch(pair.mine.get(), EPOLLIN, [&](uint32_t) {
    EXPECT_EQ(++inside, 1);
    char buffer[7];
    ssize_t n;
    while ((n = ::recv(pair.mine.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
      const int now = bytes += static_cast<int>(n);
      reactor.post_here(task_of([] { std::this_thread::yield(); }));
      if (now == kBytes) done.set_value();
    }
    --inside;
  });
  for (int i = 0; i < kBytes; ++i) {
    char c = 'x';
    while (::send(pair.theirs.get(), &c, 1, MSG_NOSIGNAL) < 0) std::this_thread::yield();
  }
  EXPECT_EQ(done.get_future().wait_for(kLong), std::future_status::ready);
  reactor.forget(pair.mine.get());
}

TEST(Reactor, WhatIsThereAlreadyCountsWhenItIsLookedAtAgain) {
  Reactor reactor(1);
  Pair pair;
  std::atomic<int> calls{0};
  std::promise<void> again;
  reactor.watch(pair.mine.get(), EPOLLIN, [&](uint32_t) {
    if (++calls == 1) again.set_value();
  });
  reactor.arm(pair.mine.get(), 0);
  pair.say('a');
  // The reactor has made a full round since.
  std::promise<void> round;
  reactor.at(Reactor::Clock::now() + 20ms, task_of([&] { round.set_value(); }));
  round.get_future().wait();
  EXPECT_EQ(calls, 0);
  reactor.arm(pair.mine.get(), EPOLLIN);
  EXPECT_EQ(again.get_future().wait_for(kLong), std::future_status::ready);
  reactor.forget(pair.mine.get());
}

TEST(Reactor, AHandlerMayForgetItself) {
  Reactor reactor(1);
  Pair pair;
  std::promise<void> done;
  reactor.watch(pair.mine.get(), EPOLLIN, [&](uint32_t) {
    reactor.forget(pair.mine.get());
    done.set_value();
  });
  pair.say('a');
  EXPECT_EQ(done.get_future().wait_for(kLong), std::future_status::ready);
}

TEST(Reactor, ForgetWaitsForTheHandler) {
  Reactor reactor(2);
  for (int round = 0; round < 50; ++round) {
    Pair pair;
    std::promise<void> in;
    std::atomic<bool> out{false};
    reactor.watch(pair.mine.get(), EPOLLIN, [&](uint32_t) {
      in.set_value();
      std::this_thread::yield();
      out = true;
    });
    pair.say('a');
    in.get_future().wait();
    reactor.forget(pair.mine.get());
    EXPECT_TRUE(out);
  }
}

TEST(Reactor, TimersRunInTheirOrderAndCancelledOnesNever) {
  Reactor reactor(1);
  std::mutex mutex;
  std::vector<int> order;
  std::promise<void> done;
  const auto now = Reactor::Clock::now();
  const auto note = [&](int i) {
    return task_of([&, i] {
      const std::lock_guard lock(mutex);
      order.push_back(i);
      if (i == 4) done.set_value();
    });
  };
  reactor.at(now + 80ms, note(4));
  const uint64_t gone = reactor.at(now + 60ms, note(3));
  reactor.at(now + 40ms, note(2));
  reactor.at(now + 20ms, note(1));
  EXPECT_TRUE(reactor.cancel(gone));
  EXPECT_FALSE(reactor.cancel(gone));
  ASSERT_EQ(done.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_GE(Reactor::Clock::now(), now + 80ms);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 4}));
}

TEST(Reactor, KnowsItsThreads) {
  Reactor reactor(1), other(1);
  std::promise<std::pair<bool, bool>> inside;
  reactor.post(
      task_of([&] { inside.set_value({reactor.is_own_thread(), other.is_own_thread()}); }));
  EXPECT_EQ(inside.get_future().get(), std::make_pair(true, false));
  EXPECT_FALSE(reactor.is_own_thread());
}

TEST(Reactor, StopDropsWhatHasNotRun) {
  std::atomic<int> alive{0}, ran{0};
  struct Counted {
    explicit Counted(std::atomic<int>& count) : count(count) { ++count; }
    ~Counted() { --count; }
    std::atomic<int>& count;
  };
  Reactor reactor(1);
  std::promise<void> in, go;
  reactor.post(task_of([&] {
    in.set_value();
    go.get_future().wait();
    ++ran;
  }));
  in.get_future().wait();
  for (int i = 0; i < 10; ++i)
    reactor.post(task_of([&, counted = std::make_unique<Counted>(alive)] { ++ran; }));
  reactor.at(soon(), task_of([&, counted = std::make_unique<Counted>(alive)] { ++ran; }));
  EXPECT_EQ(alive, 11);
  std::thread ends([&] { reactor.stop(soon()); });
  while (alive > 0) std::this_thread::yield();
  go.set_value();
  ends.join();
  EXPECT_EQ(ran, 1);
  reactor.post(task_of([&, counted = std::make_unique<Counted>(alive)] { ++ran; }));
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(ran, 1);
}

TEST(Reactor, AThreadThatStopsItDoesNotWaitForItself) {
  std::promise<bool> stopped;
  Reactor reactor(2);
  reactor.post(task_of([&] {
    const auto deadline = Reactor::Clock::now() + 60s;
    reactor.stop(deadline);
    stopped.set_value(Reactor::Clock::now() < deadline);
  }));
  EXPECT_TRUE(stopped.get_future().get());
}

TEST(Reactor, AThreadThatIsStuckIsLeftBehind) {
  auto go = std::make_shared<std::promise<void>>();
  auto out = std::make_shared<std::promise<void>>();
  std::future<void> left = out->get_future();
  {
    Reactor reactor(1);
    std::promise<void> in;
    reactor.post(task_of([&in, go, out] {
      in.set_value();
      go->get_future().wait();
      out->set_value();
    }));
    in.get_future().wait();
    const auto began = Reactor::Clock::now();
    reactor.stop(began + 50ms);
    EXPECT_LT(Reactor::Clock::now() - began, kLong);
  }
  go->set_value();
  EXPECT_EQ(left.wait_for(kLong), std::future_status::ready);
}

TEST(Timers, ManyThatAreCancelledTakeNoRoom) {
  TimedSlots<Task> timers;
  const auto now = Reactor::Clock::now();
  int ran = 0;
  std::set<uint64_t> names;
  for (int i = 0; i < 100000; ++i) {
    const uint64_t timer =
        timers.add(now + std::chrono::seconds(i % 1000), task_of([&] { ++ran; }));
    EXPECT_TRUE(names.insert(timer).second);
    if (i % 1000 != 7) {
      EXPECT_TRUE(timers.take(timer));
    }
  }
  EXPECT_EQ(timers.next(), now + std::chrono::seconds(7));
  EXPECT_EQ(timers.take_due(now + std::chrono::seconds(6)), nullptr);
  while (Task task = timers.take_due(now + std::chrono::seconds(7))) task->run();
  EXPECT_EQ(ran, 100);
  EXPECT_EQ(timers.next(), std::nullopt);
}

}  // namespace reactor_test
}  // namespace lockstep::inline v0::rpc::internal
