// Unauthenticated peers, faults and speed of TcpStore.
#include "lockstep/store/tcp_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/store/store_protocol.h"
#include "lockstep/wire/challenge.h"

namespace lockstep::inline v0 {
namespace tcp_store_test {

using testing::AllOf;
using testing::HasSubstr;

class TcpStoreTest : public testing::Test {
 protected:
  Secret secret_ = Secret::generate();
  std::optional<TcpStoreServer> server_{std::in_place, HostPort{"127.0.0.1", 0}, secret_};
  HostPort address_ = server_->address();

  TcpStore connect() { return TcpStore(address_, secret_, soon()); }
  UniqueFd connect_raw() { return connect_tcp(address_, soon()); }
  UniqueFd connect_authenticated() {
    UniqueFd fd = connect_raw();
    wire::authenticate_as_client(fd.get(), secret_, "store", soon());
    return fd;
  }
  // True when the server closes the connection within 5 s.
  static bool closed(int fd) {
    char byte;
    const Deadline deadline = Deadline::seconds(5);
    while (!deadline.expired()) {
      pollfd waiting{fd, POLLIN, 0};
      ::poll(&waiting, 1, deadline.poll_ms());
      const ssize_t n = ::recv(fd, &byte, 1, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
    }
    return false;
  }
  static Deadline soon() { return Deadline::seconds(20); }
};

size_t open_descriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST_F(TcpStoreTest, TheSystemChoosesThePort) {
  EXPECT_EQ(address_.host, "127.0.0.1");
  EXPECT_GT(address_.port, 0);
}

TEST_F(TcpStoreTest, APortInUseNamesItsOwner) {
  try {
    TcpStoreServer second(address_, secret_);
    FAIL() << "two servers on one port";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(address_.to_string()),
                                    HasSubstr("held by process " + std::to_string(::getpid())),
                                    HasSubstr("choose another")));
  }
}

TEST_F(TcpStoreTest, AnotherSecretIsRefused) {
  try {
    TcpStore store(address_, Secret::generate(), soon());
    FAIL() << "joined with another secret";
  } catch (const StoreError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(address_.to_string()), HasSubstr("secret"),
                                    HasSubstr("LOCKSTEP_SECRET")));
  }
  connect().set("k", "v");
}

TEST_F(TcpStoreTest, NobodyThereIsATimeOut) {
  server_.reset();
  EXPECT_THROW(TcpStore(address_, secret_, Deadline::seconds(0.1)), Timeout);
}

TEST_F(TcpStoreTest, WaitsForAServerThatComesUpLater) {
  server_.reset();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server_.emplace(address_, secret_);
  });
  TcpStore store(address_, secret_, soon());
  store.set("k", "v");
  later.join();
}

TEST_F(TcpStoreTest, GarbageIsCutOffAndHurtsNobody) {
  TcpStore store = connect();
  for (const std::string& garbage : std::vector<std::string>{
           std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100000, '\xff'),
           std::string("LKSTP1\r\n") + std::string(100, 'x'), std::string("LKSTP1\n")}) {
    const UniqueFd fd = connect_raw();
    ::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(closed(fd.get())) << garbage.substr(0, 20);
  }
  store.set("k", "v");
  EXPECT_EQ(store.get("k", soon()), "v");
}

TEST_F(TcpStoreTest, OversizeAndMalformedFramesAreCutOff) {
  for (const std::string& frame :
       {std::string("\xff\xff\xff\xff", 4), std::string("\x01\0\0\0\0", 5),
        std::string("\x09\0\0\0AAAAAAAA\x63", 13)}) {
    const UniqueFd fd = connect_authenticated();
    ASSERT_EQ(::send(fd.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frame.size()));
    EXPECT_TRUE(closed(fd.get()));
  }
  connect().set("k", "v");
}

TEST_F(TcpStoreTest, SilentAndSlowClientsHoldUpNobody) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(connect_raw());
  const UniqueFd half = connect_raw();
  ASSERT_EQ(::send(half.get(), "LKST", 4, 0), 4);
  const UniqueFd stuck = connect_authenticated();
  ASSERT_EQ(::send(stuck.get(), "\xff\0\0\0", 4, 0), 4);  // the rest of the frame never arrives
  TcpStore store = connect();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) store.add("n", 1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST_F(TcpStoreTest, AClientThatDoesNotReadItsAnswersHoldsUpNobody) {
  TcpStore store = connect();
  // All answers together exceed the sockets' buffers.
  store.set("large", std::string(2 << 20, 'x'));
  const UniqueFd greedy = connect_authenticated();
  StoreRequest request;
  request.op = StoreOp::kTryGet;
  request.keys = {"large"};
  for (uint64_t i = 0; i < 40; ++i) {
    request.id = i;
    const std::string frame = encode(request);
    ASSERT_EQ(::send(greedy.get(), frame.data(), frame.size(), 0),
              static_cast<ssize_t>(frame.size()));
  }
  for (int i = 0; i < 20; ++i) store.add("n", 1);
  EXPECT_EQ(store.add("n", 0), 20);
}

TEST_F(TcpStoreTest, ManyClients) {
  std::vector<std::unique_ptr<TcpStore>> stores;
  for (int i = 0; i < 200; ++i)
    stores.push_back(std::make_unique<TcpStore>(address_, secret_, soon()));
  for (auto& store : stores) store->add("n", 1);
  EXPECT_EQ(stores.front()->get("n", soon()), "200");
}

TEST_F(TcpStoreTest, TheServersEndWakesWaitersWithStoreError) {
  TcpStore store = connect();
  std::string message;
  std::thread waiter([&] {
    try {
      store.get("never", soon());
    } catch (const StoreError& error) {
      message = error.what();
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  server_.reset();
  waiter.join();
  EXPECT_THAT(message, AllOf(HasSubstr(address_.to_string()), HasSubstr("closed the connection")));
  EXPECT_THROW(store.set("k", "v"), StoreError) << "and stays broken";
}

TEST_F(TcpStoreTest, AServerThatStandsStillHoldsUpOfferAndPeekNoLongerThanTheyAllow) {
  const UniqueFd listener = listen_tcp({"127.0.0.1", 0});
  UniqueFd connection;
  std::thread server([&] {
    wait_ready(listener.get(), POLLIN, soon(), "a client");
    connection.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    wire::authenticate_as_server(connection.get(), secret_, "store", soon());
  });
  TcpStore store(local_address(listener.get()), secret_, soon());
  server.join();
  const Deadline whole = soon();
  EXPECT_THROW(store.offer("k", "v", Deadline::after(std::chrono::milliseconds(10))), Timeout);
  EXPECT_THROW(store.peek("k", Deadline::after(std::chrono::milliseconds(10))), Timeout);
  EXPECT_FALSE(whole.expired());
}

TEST_F(TcpStoreTest, AWaiterOfALostClientIsForgotten) {
  {
    const UniqueFd fd = connect_authenticated();
    StoreRequest request;
    request.op = StoreOp::kGet;
    request.keys = {"k"};
    const std::string frame = encode(request);
    ::send(fd.get(), frame.data(), frame.size(), 0);
  }
  TcpStore store = connect();
  store.set("k", "v");
  EXPECT_EQ(store.get("k", soon()), "v");
}

TEST_F(TcpStoreTest, ThreadsThatShareAConnectionWaitApart) {
  TcpStore store = connect();
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  std::atomic<int> timeouts{0}, answers{0};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        const std::string key = std::to_string(i) + "/" + std::to_string(round);
        if (round % 4 == 0) {
          try {
            store.get(key, Deadline::seconds(0.002));
          } catch (const Timeout&) {
            ++timeouts;
          }
        }
        store.set(key, key);
        if (store.get(key, soon()) == key) ++answers;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(timeouts, kThreads * 5);
  EXPECT_EQ(answers, kThreads * 20);
}

TEST_F(TcpStoreTest, LeavesNoDescriptors) {
  server_.reset();
  const size_t before = open_descriptors();
  {
    TcpStoreServer server({"127.0.0.1", 0}, secret_);
    TcpStore store(server.address(), secret_, soon());
    store.set("k", "v");
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(TcpStoreTest, AThousandSetsAndGetsTakeWellBelowASecond) {
  TcpStore store = connect();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) {
    store.set(std::to_string(i), "value");
    store.get(std::to_string(i), soon());
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("seconds", std::to_string(seconds));
  std::printf("[ measured ] 1000 set + get: %.3f s\n", seconds);
  EXPECT_LT(seconds, 5) << "generous: sanitizers and busy machines";
}

}  // namespace tcp_store_test
}  // namespace lockstep::inline v0
