// Peers that connect to a transport without belonging to the job: their data is not trusted, little
// memory is kept for them, and the others are not affected.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/net.h"
#include "lockstep/rpc/strangers_test_support.h"

namespace lockstep::rpc::internal {
namespace strangers_test {

using namespace std::chrono_literals;

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

TEST_F(Strangers, AnotherSecretIsRefused) {
  for (const bool tcp : {false, true}) {
    const UniqueFd fd = connect(tcp);
    EXPECT_THROW(prove(fd.get(), Secret::from_text("another job's"), soon()), StoreError);
  }
  EXPECT_EQ(server_.refused(), 2U);
  Reactor reactor(1);
  Transport other(reactor, store_, Secret::from_text("another job's"), {.name = "other"}, soon());
  other.start(handlers());
  EXPECT_THROW(other.link_to("server", soon()), StoreError);
  EXPECT_EQ(received_, 0);
  expect_served(0);
}

TEST_F(Strangers, NonsenseIsRefusedAtOnce) {
  const UniqueFd http = connect(true);
  send(http, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(until_closed(http), "");
  const UniqueFd long_one = connect();
  send(long_one, std::string(100000, 'x'));
  EXPECT_EQ(until_closed(long_one), "");
  EXPECT_EQ(server_.refused(), 2U);
  expect_served(0);
}

// A recorded handshake of another peer is worthless.
TEST_F(Strangers, AHandshakeThatIsReplayedIsRefused) {
  wire::ClientChallenge challenge(secret(), kPurpose);
  const std::string first = challenge.hello();
  std::string proof;
  {
    const UniqueFd fd = connect();
    send(fd, first);
    std::string bytes(challenge.wanted(), '\0');
    read_exact(fd.get(), bytes.data(), bytes.size(), soon());
    proof = challenge.feed(bytes);
    send(fd, proof);
    bytes.assign(challenge.wanted(), '\0');
    read_exact(fd.get(), bytes.data(), bytes.size(), soon());
    challenge.feed(bytes);
    EXPECT_TRUE(challenge.done());
  }
  const UniqueFd fd = connect();
  send(fd, first);
  send(fd, proof);
  // The server sends its nonce, and zeros instead of a proof.
  EXPECT_EQ(until_closed(fd).substr(first.size()), std::string(sizeof(Digest), '\0'));
  EXPECT_EQ(server_.refused(), 1U);
  expect_served(0);
}

TEST_F(Strangers, WhoDoesNotSayWhoItIsIsRefused) {
  {
    const UniqueFd fd = connect();
    prove(fd.get(), secret(), soon());
    FrameHead head;
    head.call = 1;
    send(fd, {reinterpret_cast<const char*>(&head), sizeof head});
    until_closed(fd);
  }
  {
    const UniqueFd fd = connect(true);
    prove(fd.get(), secret(), soon());
    FrameHead head;
    head.kind = kHello;
    head.body = 3;
    send(fd, std::string(reinterpret_cast<const char*>(&head), sizeof head) + "{}?");
    until_closed(fd);
  }
  {
    const UniqueFd fd = connect();
    prove(fd.get(), secret(), soon());
    FrameHead head;
    head.kind = kHello;
    head.body = kMostHello + 1;
    send(fd, {reinterpret_cast<const char*>(&head), sizeof head});
    until_closed(fd);
  }
  EXPECT_EQ(server_.refused(), 3U);
  EXPECT_EQ(received_, 0);
  EXPECT_EQ(lost_, 0);
  expect_served(0);
}

// A peer that proved the secret sends bytes that are no message.
TEST_F(Strangers, ABadFrameEndsTheLink) {
  std::vector<std::string> all;
  FrameHead head;
  head.call = 1;
  const auto bytes = [](const FrameHead& what) {
    return std::string(reinterpret_cast<const char*>(&what), sizeof what);
  };
  all.push_back(std::string(100, 'x'));
  head.body = kMostBody + 1;
  all.push_back(bytes(head));
  head.body = 0;
  head.kind = MessageKind::kTaken;
  all.push_back(bytes(head));  // nothing was offered
  head.kind = kHello;
  all.push_back(bytes(head));
  head.kind = MessageKind::kRequest;
  head.tensors = 1;
  std::string table;
  append_row(table, at::kByte, {int64_t{1} << 60}, 0);
  head.table = static_cast<uint32_t>(table.size());
  all.push_back(bytes(head) + table);
  // Memory that the server cannot read.
  table.clear();
  append_row(table, at::kByte, {100}, 4096);
  head.ticket = 1;
  all.push_back(bytes(head) + table);
  for (size_t i = 0; i < all.size(); ++i) {
    const UniqueFd fd = introduced(i % 2 == 1);
    send(fd, all[i]);
    until_closed(fd);
    EXPECT_EQ(server_.refused(), i + 1);
  }
  for (int i = 0; i < 60000 && lost_ < static_cast<int>(all.size()); ++i)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(lost_, static_cast<int>(all.size()));
  EXPECT_EQ(received_, 0);
  expect_served(0);
}

// Names are displayed to people, on terminals.
TEST_F(Strangers, ANameThatCannotBeShownIsRefused) {
  for (const char* name : {"", "a\x1b[2J"}) {
    const UniqueFd fd = connect();
    prove(fd.get(), secret(), soon());
    send(fd, hello_frame(hello(name)));
    EXPECT_EQ(until_closed(fd), "");
  }
  EXPECT_EQ(server_.refused(), 2U);
}

TEST_F(Strangers, AFrameThatEndsInTheMiddleIsNoMessage) {
  FrameHead head;
  head.call = 1;
  head.tensors = 1;
  std::string table;
  append_row(table, at::kByte, {1 << 20}, 0);
  head.table = static_cast<uint32_t>(table.size());
  head.body = 10;
  const std::string whole = std::string(reinterpret_cast<const char*>(&head), sizeof head) +
                            "0123456789" + table + std::string(1 << 20, 'x');
  int links = 0;
  for (const size_t bytes : {1UL, 39UL, 40UL, 45UL, 60UL, 80UL, 5000UL, (1UL << 20) + 60}) {
    {
      const UniqueFd fd = introduced(++links % 2 == 0);
      send(fd, whole.substr(0, bytes));
    }
    for (int i = 0; i < 60000 && lost_ < links; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(lost_, links);
  }
  EXPECT_EQ(received_, 0);
  // Complete, but a byte at a time.
  const UniqueFd fd = introduced();
  const std::string small = whole.substr(0, 2000);
  for (const char c : small) send(fd, {&c, 1});
  send(fd, std::string_view(whole).substr(2000));
  for (int i = 0; i < 60000 && received_ == 0; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(received_, 1);
}

TEST_F(Strangers, ManyWhoSayNothingAreClosed) {
  const auto began = Deadline::Clock::now();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect(i % 2 == 0));
  // The oldest connection had to make room.
  EXPECT_EQ(until_closed(silent[0]), "");
  expect_served(0);
  // The others had their full time.
  EXPECT_EQ(until_closed(silent.back()), "");
  EXPECT_GE(Deadline::Clock::now() - began, 4s);
}

// A peer that has proved the secret makes room for no unauthenticated one, and is not told that it
// has met the server before it has.
TEST_F(Strangers, WhoHasProvedTheSecretStaysInAStorm) {
  std::vector<UniqueFd> known, silent;
  for (const bool tcp : {false, true}) {
    known.push_back(connect(tcp));
    prove(known.back().get(), secret(), soon());
  }
  for (int i = 0; i < 700; ++i) {
    silent.push_back(connect(i % 2 == 0));
    if (silent.size() > 300) silent.erase(silent.begin());
  }
  for (const UniqueFd& fd : known)
    EXPECT_EQ(introduce(fd.get(), hello("odd"), soon()).other.peer.name, "server");
}

// Unauthenticated peers from another host do not push out a peer that is about to prove the secret.
TEST_F(Strangers, AStormFromElsewhereHoldsUpNobody) {
  std::atomic<bool> over{false};
  std::thread storm([&] {
    std::vector<UniqueFd> held;
    while (!over) {
      held.push_back(connect(true));
      send(held.back(), wire::ClientChallenge(secret(), kPurpose).hello());
      if (held.size() > 300) held.erase(held.begin());
    }
  });
  for (int i = 0; i < 20; ++i) expect_served(i);
  over = true;
  storm.join();
}

// Few log lines, no connection dropped for nothing, and service continues as soon as there are
// descriptors.
TEST_F(Strangers, WithoutDescriptorsTheyWait) {
  if (kSanitized)
    GTEST_SKIP() << "UndefinedBehaviorSanitizer wants a descriptor to look at an object";
  constexpr int kMany = 20;
  const std::string where = entry().local;
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < kMany; ++i) sockets.push_back(local_socket());
  testing::internal::CaptureStderr();
  {
    const FewDescriptors none(0);
    for (const UniqueFd& socket : sockets) EXPECT_TRUE(connect_socket(socket, where));
    std::this_thread::sleep_for(1s);  // several retries, if each of them had caused others
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 3) << log;
  EXPECT_NE(log.find("cannot be accepted"), std::string::npos) << log;
  prove(sockets.front().get(), secret(), soon());
  expect_served(0);
}

TEST_F(Strangers, ConnectionsLeaveNothingBehind) {
  const size_t before = open_descriptors();  // none has connected yet: all of them stay
  for (int i = 0; i < 1000; ++i) {
    const bool tcp = i % 2 == 0;
    if (i % 4 == 0)
      const UniqueFd fd = connect(tcp);
    else if (i % 4 == 1)
      send(connect(tcp), "nonsense of some length");
    else
      const UniqueFd fd = introduced(tcp);
  }
  for (int i = 0; i < 60000 && (lost_ < 500 || open_descriptors() > before); ++i)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(lost_, 500);
  EXPECT_EQ(open_descriptors(), before);
  expect_served(0);
}

}  // namespace strangers_test
}  // namespace lockstep::rpc::internal
