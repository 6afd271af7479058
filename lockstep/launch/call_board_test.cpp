#include "lockstep/launch/call_board.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "lockstep/core/errors.h"

namespace lockstep::launch {
namespace call_board_test {

EnvLookup board_fd(const std::string& value) {
  return [value](std::string_view name) -> std::optional<std::string> {
    return name == "LOCKSTEP_BOARD_FD" ? std::optional(value) : std::nullopt;
  };
}

BoardRecord record(uint64_t sequence, const std::string& call) {
  BoardRecord result;
  result.sequence = sequence;
  result.state = 1;
  result.pid = 42;
  std::strncpy(result.call, call.c_str(), sizeof result.call - 1);
  return result;
}

TEST(CallBoard, StartsEmptyAndShowsWhatWasPublished) {
  CallBoard board = CallBoard::create(2);
  EXPECT_EQ(board.ranks(), 2);
  EXPECT_EQ(board.read(1).sequence, 0u);
  EXPECT_STREQ(board.read(1).call, "");
  board.publish(1, record(7, "barrier"));
  EXPECT_EQ(board.read(1).sequence, 7u);
  EXPECT_STREQ(board.read(1).call, "barrier");
  EXPECT_EQ(board.read(0).sequence, 0u);
}

TEST(CallBoard, IgnoresRanksThatItDoesNotHave) {
  CallBoard board = CallBoard::create(1);
  board.publish(1, record(1, "x"));
  board.publish(-1, record(1, "x"));
  EXPECT_EQ(board.read(1).sequence, 0u);
  EXPECT_EQ(board.read(0).sequence, 0u);
}

TEST(CallBoard, IsInheritedThroughItsDescriptor) {
  CallBoard board = CallBoard::create(3);
  EXPECT_NE(::fcntl(board.fd(), F_GETFD) & FD_CLOEXEC, 0);
  auto other = CallBoard::inherit(board_fd(std::to_string(board.fd())));
  ASSERT_TRUE(other);
  EXPECT_EQ(other->ranks(), 3);
  other->publish(2, record(5, "all_reduce"));
  EXPECT_EQ(board.read(2).sequence, 5u);
  board = CallBoard::create(1);  // the other mapping outlives the first one
  EXPECT_EQ(other->read(2).sequence, 5u);
}

TEST(CallBoard, WhatIsNotABoardIsNotInherited) {
  EXPECT_FALSE(CallBoard::inherit([](std::string_view) { return std::nullopt; }));
  EXPECT_FALSE(CallBoard::inherit(board_fd("x")));
  EXPECT_FALSE(CallBoard::inherit(board_fd("1000000")));
  EXPECT_FALSE(CallBoard::inherit(board_fd("0")));
  const UniqueFd other(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(other.get(), 64 + 384), 0);
  EXPECT_FALSE(CallBoard::inherit(board_fd(std::to_string(other.get())))) << "not sealed";
  ASSERT_EQ(::fcntl(other.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_FALSE(CallBoard::inherit(board_fd(std::to_string(other.get())))) << "no magic";
}

TEST(CallBoard, RefusesNoRanks) {
  EXPECT_THROW(CallBoard::create(0), InvalidArgument);
  EXPECT_THROW(CallBoard::create(1 << 20), InvalidArgument);
}

// Every record's text repeats its number: a torn one would mix two.
TEST(CallBoard, ReadersNeverSeeAMixedRecord) {
  CallBoard board = CallBoard::create(1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 1; i <= 200000 || board.read(0).sequence == 0; ++i) {
      board.publish(0, record(i, std::string(150, static_cast<char>('a' + i % 26))));
    }
    stop = true;
  });
  uint64_t last = 0;
  while (!stop) {
    const BoardRecord seen = board.read(0);
    ASSERT_GE(seen.sequence, last);
    last = seen.sequence;
    if (last > 0) {
      ASSERT_EQ(std::string(seen.call), std::string(150, static_cast<char>('a' + last % 26)));
    }
  }
  writer.join();
}

}  // namespace call_board_test
}  // namespace lockstep::launch
