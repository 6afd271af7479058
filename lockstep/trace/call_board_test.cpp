#include "lockstep/trace/call_board.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::trace {
namespace call_board_test {

EnvLookup board_fd(const std::string& value) {
  return [value](std::string_view name) -> std::optional<std::string> {
    return name == "LOCKSTEP_BOARD_FD" ? std::optional(value) : std::nullopt;
  };
}

CallRecord record(uint64_t sequence, const std::string& op) {
  CallRecord result;
  result.sequence = sequence;
  op.copy(result.op, sizeof result.op - 1);
  return result;
}

TEST(CallBoard, AnotherProcessLooksAtItThroughADescriptorThatOnlyReads) {
  CallBoard board = CallBoard::create(2);
  board.enter(0, 71);
  board.begin(0, record(3, "barrier"));
  const std::string path = "/proc/self/fd/" + std::to_string(board.fd());
  const auto seen = CallBoard::look(UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->ranks(), 2);
  EXPECT_EQ(seen->pid(0), 71U);
  EXPECT_EQ(seen->read(0).call, "barrier");
  board.begin(0, record(4, "broadcast"));
  EXPECT_EQ(seen->read(0).call, "broadcast") << "it is the same memory";
  EXPECT_FALSE(CallBoard::look(UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC))));
}

TEST(CallBoard, StartsEmptyAndShowsTheLastCall) {
  CallBoard board = CallBoard::create(2);
  EXPECT_EQ(board.ranks(), 2);
  EXPECT_EQ(board.read(1).sequence, 0u);
  EXPECT_EQ(board.read(1).call, "");
  board.enter(1, 42);
  const uint64_t call = board.begin(1, record(7, "barrier"));
  EXPECT_EQ(board.read(1).sequence, 7u);
  EXPECT_EQ(board.read(1).call, "barrier");
  EXPECT_EQ(board.read(1).pid, 42u);
  EXPECT_EQ(board.read(1).state, 1u);
  board.end(1, call, 99);
  EXPECT_EQ(board.read(1).state, 2u);
  EXPECT_EQ(board.records(1).at(0).ended, 99u);
  EXPECT_EQ(board.read(0).sequence, 0u);
}

TEST(CallBoard, ForgetsWhoHasLeft) {
  CallBoard board = CallBoard::create(2);
  for (const int rank : {0, 1}) {
    board.enter(rank, 42);
    board.begin(rank, record(7, "barrier"));
    board.step(rank, "connecting");
    board.give_up(rank, 0);
    board.set_presence(rank, CallBoard::Presence::kFinished);
  }
  board.leave(1);
  const BoardRecord left = board.read(1);
  EXPECT_EQ(left.pid, 0u);
  EXPECT_EQ(left.sequence, 0u);
  EXPECT_EQ(left.step, "");
  EXPECT_FALSE(left.gave_up);
  EXPECT_EQ(board.presence(1), CallBoard::Presence::kAtWork);
  EXPECT_TRUE(board.records(1).empty());
  EXPECT_EQ(board.read(0).call, "barrier");
  EXPECT_EQ(board.presence(0), CallBoard::Presence::kFinished);
  board.enter(0, 42);
  EXPECT_EQ(board.presence(0), CallBoard::Presence::kFinished)
      << "one more communicator is no new life";
  board.enter(1, 43);
  board.begin(1, record(1, "all_reduce"));
  EXPECT_EQ(board.read(1).call, "all_reduce");
  EXPECT_EQ(board.records(1).size(), 1u);
  board.leave(5);  // a rank that the board does not have
}

TEST(CallBoard, ShowsTheStepOfInitAndWhoWaitedInVain) {
  CallBoard board = CallBoard::create(2);
  EXPECT_EQ(board.read(0).step, "");
  EXPECT_FALSE(board.read(0).gave_up);
  board.enter(0, 42);
  board.step(0, "reaching the store at 127.0.0.1:4000");
  EXPECT_EQ(board.read(0).step, "reaching the store at 127.0.0.1:4000");
  EXPECT_EQ(board.read(1).step, "");
  board.give_up(0, 3);
  EXPECT_TRUE(board.read(0).gave_up);
  EXPECT_EQ(board.read(0).late, 3);
  board.give_up(0, -1);
  EXPECT_TRUE(board.read(0).gave_up);
  EXPECT_EQ(board.read(0).late, -1);
  board.step(0, std::string(1000, 'x'));
  EXPECT_EQ(board.read(0).step, std::string(128, 'x')) << "cut";
  board.step(0, "");
  EXPECT_EQ(board.read(0).step, "");
  board.enter(0, 42);
  EXPECT_FALSE(board.read(0).gave_up) << "it goes on with a new communicator";
}

TEST(CallBoard, KeepsTheLastCallsInOrder) {
  CallBoard board = CallBoard::create(1);
  const uint64_t n = CallBoard::kRecords + 10;
  for (uint64_t i = 1; i <= n; ++i) board.end(0, board.begin(0, record(i, "x")), 1000 + i);
  const std::vector<CallRecord> records = board.records(0);
  ASSERT_EQ(records.size(), CallBoard::kRecords);
  for (uint64_t i = 0; i < CallBoard::kRecords; ++i) {
    ASSERT_EQ(records[i].sequence, 11 + i);
    ASSERT_EQ(records[i].ended, 1011 + i);
  }
}

TEST(CallBoard, TellsWhenTheRankBeganToWait) {
  CallBoard board = CallBoard::create(1);
  CallRecord first = record(1, "all_reduce");
  first.begun = 100;
  const uint64_t pending = board.begin(0, first);
  CallRecord second = record(2, "barrier");
  second.begun = 200;
  board.begin(0, second, /*waits=*/true);
  EXPECT_EQ(board.calls(0), 2u);
  std::vector<KeptCall> calls = board.calls_from(0, 0);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].waited, 0u);
  EXPECT_EQ(calls[1].waited, 200u);
  board.wait(0, pending, 300);
  calls = board.calls_from(0, 0);
  EXPECT_EQ(calls[0].waited, 300u);
  EXPECT_EQ(calls[0].record.ended, 0u);
  // A later call in its place has waited for itself alone.
  for (uint64_t i = 3; i <= CallBoard::kRecords + 1; ++i) board.begin(0, record(i, "x"));
  board.wait(0, pending, 400);
  calls = board.calls_from(0, CallBoard::kRecords - 1);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[1].number, CallBoard::kRecords);
  EXPECT_EQ(calls[1].waited, 0u);
  EXPECT_TRUE(board.calls_from(0, CallBoard::kRecords + 1).empty());
  EXPECT_EQ(board.calls(7), 0u);
  EXPECT_TRUE(board.calls_from(7, 0).empty());
}

TEST(CallBoard, TellsOfCallsThatWillNotEnd) {
  CallBoard board = CallBoard::create(1);
  const uint64_t first = board.begin(0, record(1, "all_reduce"));
  const uint64_t second = board.begin(0, record(2, "barrier"));
  board.end(0, second, 90);
  EXPECT_TRUE(board.calls_from(0, 0)[0].under_way());
  board.abandon(0, first, 70);
  board.abandon(0, first, 80);  // the first time counts
  std::vector<KeptCall> calls = board.calls_from(0, 0);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_FALSE(calls[0].under_way());
  EXPECT_EQ(calls[0].abandoned, 70u);
  EXPECT_EQ(calls[0].record.ended, 0u) << "the rank was inside when it was left";
  EXPECT_FALSE(calls[1].under_way());
  EXPECT_EQ(calls[1].abandoned, 0u);
  for (uint64_t i = 3; i <= CallBoard::kRecords + 1; ++i) board.begin(0, record(i, "x"));
  board.abandon(0, first, 99);
  for (const KeptCall& call : board.calls_from(0, 2)) ASSERT_TRUE(call.under_way());
}

TEST(CallBoard, CallsAreMarkedAsLongAsSomeoneAsksForIt) {
  CallBoard board = CallBoard::create(1);
  EXPECT_FALSE(board.marks_calls());
  board.mark_calls(true);
  board.mark_calls(true);
  board.mark_calls(false);
  EXPECT_TRUE(board.marks_calls());
  EXPECT_FALSE(board.watches_ends());
  board.mark_calls(false);
  EXPECT_FALSE(board.marks_calls());
}

TEST(CallBoard, EndsAreWatchedAsLongAsSomeoneAsksForIt) {
  CallBoard board = CallBoard::create(1);
  EXPECT_FALSE(board.watches_ends());
  board.watch_ends(true);
  board.watch_ends(true);
  board.watch_ends(false);
  EXPECT_TRUE(board.watches_ends());
  board.watch_ends(false);
  EXPECT_FALSE(board.watches_ends());
}

TEST(CallBoard, ALateEndDoesNotTouchWhatTookItsPlace) {
  CallBoard board = CallBoard::create(1);
  const uint64_t first = board.begin(0, record(1, "x"));
  for (uint64_t i = 0; i < CallBoard::kRecords; ++i) board.begin(0, record(2 + i, "y"));
  board.end(0, first, 5);
  for (const CallRecord& r : board.records(0)) ASSERT_EQ(r.ended, 0u);
}

// However many remote calls are pending, they displace neither the collectives nor calls that have
// been pending for longer.
TEST(CallBoard, PendingRemoteCallsKeepTheirPlaces) {
  CallBoard board = CallBoard::create(1);
  const auto remote = [](uint64_t begun) {
    CallRecord result = record(0, "rpc");
    result.moving = 3;
    result.begun = begun;
    return result;
  };
  board.begin(0, record(1, "barrier"));
  std::vector<uint64_t> calls;
  for (uint64_t i = 1; i <= 2 * CallBoard::kRecords; ++i)
    calls.push_back(board.begin(0, remote(i)));
  EXPECT_EQ(board.read(0).call, "barrier");
  std::vector<CallRecord> records = board.records(0);
  ASSERT_EQ(records.size(), 1 + CallBoard::kRemoteRecords);
  EXPECT_EQ(records[0].sequence, 1U);
  for (uint64_t i = 1; i <= CallBoard::kRemoteRecords; ++i) ASSERT_EQ(records[i].begun, i);
  EXPECT_EQ(calls[CallBoard::kRemoteRecords], CallBoard::kNoRoom);
  board.end(0, calls.back(), 5);  // no effect
  board.end(0, calls[7], 5);
  EXPECT_EQ(board.records(0)[8].ended, 5U);
  EXPECT_NE(board.begin(0, remote(9999)), CallBoard::kNoRoom);
  EXPECT_EQ(board.begin(0, remote(9999)), CallBoard::kNoRoom);
  board.end(0, calls[7], 6);  // another call has its slot
  records = board.records(0);
  EXPECT_EQ(records[8].begun, 9999U);
  EXPECT_EQ(records[8].ended, 0U);
  for (uint64_t i = 0; i < CallBoard::kRecords; ++i) board.begin(0, record(2 + i, "x"));
  EXPECT_EQ(board.records(0).size(), CallBoard::kRecords + CallBoard::kRemoteRecords);
  board.leave(0);
  EXPECT_TRUE(board.records(0).empty());
}

TEST(CallBoard, IgnoresRanksThatItDoesNotHave) {
  CallBoard board = CallBoard::create(1);
  board.begin(1, record(1, "x"));
  board.begin(-1, record(1, "x"));
  board.set_presence(1, CallBoard::Presence::kEnded);
  EXPECT_EQ(board.presence(1), CallBoard::Presence::kAtWork);
  board.end(-1, 0, 1);
  EXPECT_EQ(board.read(1).sequence, 0u);
  EXPECT_EQ(board.read(0).sequence, 0u);
}

TEST(CallBoard, IsInheritedThroughItsDescriptor) {
  CallBoard board = CallBoard::create(3);
  EXPECT_NE(::fcntl(board.fd(), F_GETFD) & FD_CLOEXEC, 0);
  auto other = CallBoard::inherit(board_fd(std::to_string(board.fd())));
  ASSERT_TRUE(other);
  EXPECT_EQ(other->ranks(), 3);
  other->begin(2, record(5, "all_reduce"));
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

// Every record's text repeats its number: a torn record would mix two.
TEST(CallBoard, ReadersNeverSeeAMixedRecord) {
  CallBoard board = CallBoard::create(1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 1; i <= 200000; ++i) {
      CallRecord r = record(i, std::string(15, static_cast<char>('a' + i % 26)));
      std::memset(r.note, 'a' + static_cast<int>(i % 26), sizeof r.note - 1);
      board.end(0, board.begin(0, r), i);
    }
    stop = true;
  });
  while (!stop) {
    uint64_t last = 0;
    for (const CallRecord& r : board.records(0)) {
      ASSERT_GT(r.sequence, last);
      last = r.sequence;
      const char expected = static_cast<char>('a' + r.sequence % 26);
      ASSERT_EQ(std::string(r.op), std::string(15, expected));
      ASSERT_EQ(std::string(r.note), std::string(47, expected));
      ASSERT_TRUE(r.ended == 0 || r.ended == r.sequence);
    }
  }
  writer.join();
  EXPECT_EQ(board.records(0).back().sequence, 200000u);
}

}  // namespace call_board_test
}  // namespace lockstep::inline v0::trace
