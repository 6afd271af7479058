#include "lockstep/comm/backend/failure.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/comm/groups/giving_up.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::failure_test {
namespace {

TEST(Failure, EachHasItsException) {
  EXPECT_THROW(throw_failure(Failure::kTimeout, -1, "x"), Timeout);
  EXPECT_THROW(throw_failure(Failure::kMismatch, -1, "x"), Mismatch);
  try {
    throw_failure(Failure::kTimeout, 2, "x");
  } catch (const Timeout& error) {
    const auto* late = dynamic_cast<const LateRank*>(&error);
    ASSERT_NE(late, nullptr);
    EXPECT_EQ(late->rank(), 2);
  }
  for (const Failure kind : {Failure::kPeerLost, Failure::kOther}) {
    try {
      throw_failure(kind, 2, "x");
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.rank(), 2);
      EXPECT_STREQ(error.what(), "x");
    }
  }
}

TEST(Failure, OnlyItsNumbersAreRead) {
  for (const Failure kind :
       {Failure::kTimeout, Failure::kPeerLost, Failure::kMismatch, Failure::kOther}) {
    EXPECT_EQ(failure_of(static_cast<int64_t>(kind)), kind);
  }
  for (const int64_t number : {-1, 0, 5, 255, 1 << 16, 257})
    EXPECT_EQ(failure_of(number), std::nullopt);
}

TEST(FailureBoard, KeepsTheFirstReportWhole) {
  const auto board = std::make_unique<FailureBoard>();
  EXPECT_FALSE(board->any());
  EXPECT_FALSE(board->read());
  EXPECT_TRUE(board->report(Failure::kMismatch, 3, -1, "first"));
  EXPECT_FALSE(board->report(Failure::kTimeout, 1, 2, "second"));
  EXPECT_TRUE(board->any());
  const auto report = board->read();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, Failure::kMismatch);
  EXPECT_EQ(report->reporter, 3);
  EXPECT_EQ(report->rank, -1);
  EXPECT_EQ(report->text, "first");
}

TEST(FailureBoard, CutsWhatIsTooLongAndNamesTheLost) {
  const auto board = std::make_unique<FailureBoard>();
  board->report(Failure::kPeerLost, 0, 7, std::string(5000, 'x'));
  EXPECT_EQ(board->read()->text, std::string(sizeof board->text - 1, 'x'));
  EXPECT_EQ(board->read()->rank, 7);
}

TEST(FailureBoard, BlamesWhoReportedItOnlyForGivingUp) {
  for (const Failure kind :
       {Failure::kTimeout, Failure::kPeerLost, Failure::kMismatch, Failure::kOther}) {
    const auto board = std::make_unique<FailureBoard>();
    board->report(kind, 3, -1, "x");
    EXPECT_EQ(board->read()->rank, kind == Failure::kOther ? 3 : -1);
  }
}

TEST(GivingUp, IsShownForThoseThatWaitedAndByTheirRanksInTheJob) {
  trace::CallBoard board = trace::CallBoard::create(1);
  const auto late = [&](const std::exception& error, std::vector<int> members = {}) {
    board.enter(0, 1);
    try {
      if (const auto* rank = dynamic_cast<const LateRank*>(&error)) throw *rank;
      if (const auto* lost = dynamic_cast<const PeerLost*>(&error)) throw *lost;
      if (const auto* timeout = dynamic_cast<const Timeout*>(&error)) throw *timeout;
      throw Mismatch(error.what());
    } catch (...) {
      show_giving_up(board, 0, std::current_exception(), members);
    }
    const trace::BoardRecord record = board.read(0);
    return record.gave_up ? std::optional(record.late) : std::nullopt;
  };
  EXPECT_EQ(late(LateRank("x", 1)), 1);
  EXPECT_EQ(late(LateRank("x", 1), {4, 7}), 7) << "a group's rank by its rank in the job";
  EXPECT_EQ(late(Timeout("x"), {4, 7}), -1);
  EXPECT_EQ(late(PeerLost("x", 0), {4, 7}), 4);
  EXPECT_EQ(late(PeerLost("x", -1), {4, 7}), -1);
  EXPECT_EQ(late(Mismatch("x")), std::nullopt);
}

TEST(GivingUp, NamesTheRankOfTheJob) {
  const std::vector<int> members{4, 7}, job{0, 1};
  const std::vector<std::string> titles{"data 0", "data 1"};
  const auto text = [](const std::exception_ptr& error, int rank) {
    try {
      std::rethrow_exception(error);
    } catch (const LateRank& late) {
      EXPECT_EQ(late.rank(), rank);
      return std::string("late: ") + late.what();
    } catch (const PeerLost& lost) {
      EXPECT_EQ(lost.rank(), rank);
      return std::string("lost: ") + lost.what();
    } catch (const Error& other) {
      return std::string(other.what());
    }
  };
  const auto lost = [](int rank) { return std::make_exception_ptr(PeerLost("x", rank)); };
  const auto late = std::make_exception_ptr(LateRank("x", 0));
  EXPECT_EQ(text(named_in_job(lost(1), members, {}), 1),
            "lost: x; rank 1 of this group is rank 7 of the job");
  EXPECT_EQ(text(named_in_job(late, members, titles), 0),
            "late: x; rank 0 of this group is rank 4 of the job (data 0)");
  EXPECT_EQ(text(named_in_job(lost(1), job, titles), 1),
            "lost: x; rank 1 of this group is rank 1 of the job (data 1)");
  EXPECT_EQ(text(named_in_job(lost(1), job, {}), 1), "lost: x");
  EXPECT_EQ(text(named_in_job(lost(-1), members, titles), -1), "lost: x");
  EXPECT_EQ(text(named_in_job(std::make_exception_ptr(Mismatch("x")), members, titles), -1), "x");
}

TEST(FailureBoard, OneOfManyIsFirst) {
  const auto board = std::make_unique<FailureBoard>();
  std::atomic<int> first = 0;
  std::vector<std::jthread> ranks;
  for (int r = 0; r < 4; ++r) {
    ranks.emplace_back([&, r] {
      first += board->report(Failure::kOther, r, r, "rank " + std::to_string(r)) ? 1 : 0;
      while (!board->read()) std::this_thread::yield();
      const auto report = board->read();
      EXPECT_EQ(report->text, "rank " + std::to_string(report->reporter));
    });
  }
  ranks.clear();
  EXPECT_EQ(first, 1);
}

}  // namespace
}  // namespace lockstep::inline v0::failure_test
