// Peers that connect to a transport without belonging to the job: their data is not trusted, little
// memory is kept for them, and the others are not affected.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/rpc/strangers_test_support.h"

namespace lockstep::inline v0::rpc::internal {
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
    until_closed(fd);  // it counts behind its answer
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
}  // namespace lockstep::inline v0::rpc::internal
