#include "lockstep/timeline/call_collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <memory>
#include <vector>

namespace lockstep::inline v0::timeline::call_collector_test {

using ::testing::ElementsAre;
using trace::CallBoard;

constexpr uint64_t kMark = 0x1234567890abcdef;  // plus the call's sequence: its fingerprint

trace::CallRecord record(uint64_t sequence) {
  trace::CallRecord result;
  result.sequence = sequence;
  result.fingerprint = kMark + sequence;
  result.begun = 100 * sequence;
  return result;
}

std::shared_ptr<CallBoard> make_board() {
  return std::make_shared<CallBoard>(CallBoard::create(1));
}

std::vector<uint64_t> sequences(const CallCollector& collector) {
  std::vector<uint64_t> found;
  for (const trace::KeptCall& call : collector.calls()) found.push_back(call.record.sequence);
  return found;
}

// As where the thread that records a call is interrupted in the middle: the stamp before the record
// is odd until then.
class HalfWritten {
 public:
  HalfWritten(const CallBoard& board, uint64_t sequence) {
    struct stat info{};
    ::fstat(board.fd(), &info);
    size_ = static_cast<size_t>(info.st_size);
    base_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, board.fd(), 0);
    auto* words = static_cast<std::atomic<uint64_t>*>(base_);
    for (size_t i = 2; i < size_ / sizeof *words; ++i)
      if (words[i].load() == kMark + sequence) stamp_ = &words[i - 2];
    stamp_->fetch_sub(1);
  }
  ~HalfWritten() { ::munmap(base_, size_); }
  HalfWritten(const HalfWritten&) = delete;
  HalfWritten& operator=(const HalfWritten&) = delete;

  void complete() { stamp_->fetch_add(1); }

 private:
  size_t size_ = 0;
  void* base_ = nullptr;
  std::atomic<uint64_t>* stamp_ = nullptr;
};

TEST(CallCollector, TakesWhatBeginsAndWhatWasUnderWay) {
  const auto board = make_board();
  board->end(0, board->begin(0, record(1)), 150);
  const uint64_t pending = board->begin(0, record(2));
  const uint64_t broken = board->begin(0, record(3));
  board->end(0, board->begin(0, record(4)), 450);
  board->abandon(0, broken, 460);
  CallCollector collector(board, 0, 100);
  board->end(0, board->begin(0, record(5)), 550);
  collector.collect();
  EXPECT_THAT(sequences(collector), ElementsAre(2, 5));
  EXPECT_TRUE(collector.calls()[0].under_way());
  board->end(0, pending, 600);
  board->end(0, board->begin(0, record(6)), 650);
  collector.finish();
  EXPECT_THAT(sequences(collector), ElementsAre(2, 5, 6));
  EXPECT_EQ(collector.calls()[0].record.ended, 600U);
  EXPECT_EQ(collector.lost(), 0U);
}

TEST(CallCollector, ACallThatIsJustBeingRecordedIsTakenTheNextTime) {
  const auto board = make_board();
  CallCollector collector(board, 0, 100);
  for (uint64_t i = 1; i <= 3; ++i) board->end(0, board->begin(0, record(i)), 100 * i + 50);
  HalfWritten second(*board, 2);
  collector.collect();
  EXPECT_THAT(sequences(collector), ElementsAre(1, 3));
  collector.collect();
  EXPECT_EQ(collector.lost(), 1U) << "as far as it can tell by now";
  second.complete();
  collector.collect();
  EXPECT_THAT(sequences(collector), ElementsAre(1, 2, 3));
  EXPECT_EQ(collector.lost(), 0U);
}

TEST(CallCollector, TheLastTimeItWaitsForAWhileAndThenCountsTheCallAsLost) {
  const auto board = make_board();
  CallCollector collector(board, 0, 100);
  for (uint64_t i = 1; i <= 2; ++i) board->end(0, board->begin(0, record(i)), 100 * i + 50);
  HalfWritten first(*board, 1);
  collector.finish();
  EXPECT_THAT(sequences(collector), ElementsAre(2));
  EXPECT_EQ(collector.lost(), 1U);
  first.complete();
}

TEST(CallCollector, ACallThatIsJustBeingRecordedAtTheBeginningCounts) {
  const auto board = make_board();
  for (uint64_t i = 1; i <= 3; ++i) board->begin(0, record(i));
  HalfWritten second(*board, 2);
  CallCollector collector(board, 0, 100);
  second.complete();
  collector.finish();
  EXPECT_THAT(sequences(collector), ElementsAre(1, 2, 3));
  EXPECT_EQ(collector.lost(), 0U);
}

TEST(CallCollector, CountsWhatWasOverwrittenBeforeItsEndWasSeen) {
  const auto board = make_board();
  board->begin(0, record(1));  // under way at the beginning
  CallCollector collector(board, 0, 5000);
  board->begin(0, record(2));
  collector.collect();
  EXPECT_EQ(collector.lost(), 0U);
  for (uint64_t i = 3; i <= CallBoard::kRecords + 12; ++i)
    board->end(0, board->begin(0, record(i)), 100 * i + 50);
  collector.finish();
  EXPECT_EQ(collector.calls().size(), CallBoard::kRecords);
  EXPECT_EQ(collector.calls().front().record.sequence, 13U);
  EXPECT_EQ(collector.lost(), 12U) << "both, and the ten that nobody has read";
}

TEST(CallCollector, ItsCapacityBoundsWhatItTakes) {
  const auto board = make_board();
  for (uint64_t i = 1; i <= 2; ++i) board->begin(0, record(i));
  CallCollector collector(board, 0, 3);
  for (uint64_t i = 3; i <= 6; ++i) board->begin(0, record(i));
  collector.finish();
  EXPECT_THAT(sequences(collector), ElementsAre(1, 2, 3));
  EXPECT_EQ(collector.lost(), 3U);
}

}  // namespace lockstep::inline v0::timeline::call_collector_test
