#include "lockstep/cli/doctor/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0::cli {
namespace doctor_trace_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using trace::CallRecord;
using trace::TraceFile;

// Ticks are nanoseconds; the traces are written 100 s after the ranks joined.
constexpr uint64_t kSecond = 1'000'000'000;
constexpr int64_t kEpoch = 1'700'000'000'000'000'000;

TraceFile trace_of_rank(int rank, int size) {
  TraceFile trace;
  trace.rank = trace.local_rank = rank;
  trace.world_size = size;
  trace.pid = 100 + static_cast<uint32_t>(rank);
  trace.reason = "SIGUSR1";
  trace.entered = {1, kEpoch};
  trace.now = {1 + 100 * kSecond, kEpoch + 100 * static_cast<int64_t>(kSecond)};
  return trace;
}

CallRecord call(uint64_t sequence, const std::string& op, uint32_t line, double seconds = 1) {
  CallRecord record;
  record.sequence = sequence;
  record.fingerprint = std::hash<std::string>()(op);
  record.begun = 1 + sequence * kSecond;
  record.ended = record.begun + static_cast<uint64_t>(seconds * static_cast<double>(kSecond));
  record.line = line;
  op.copy(record.op, sizeof record.op - 1);
  std::string("train.cpp").copy(record.file, sizeof record.file - 1);
  return record;
}

CallRecord inside(CallRecord record) {
  record.ended = 0;
  return record;
}

// Adds the barriers 1 to `count` of all ranks.
std::vector<TraceFile> in_step(int size, uint64_t count) {
  std::vector<TraceFile> traces;
  for (int rank = 0; rank < size; ++rank) {
    traces.push_back(trace_of_rank(rank, size));
    for (uint64_t i = 1; i <= count; ++i) traces.back().calls.push_back(call(i, "barrier", 10));
  }
  return traces;
}

std::string all(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(MergeTraces, RanksInStepAreFine) {
  const TraceReport report = merge_traces(in_step(3, 4));
  EXPECT_FALSE(report.wrong);
  EXPECT_THAT(report.verdict,
              ElementsAre("All ranks made the same calls, and none is inside one."));
  ASSERT_EQ(report.groups.size(), 1u);
  EXPECT_EQ(report.groups[0].last.size(), 4u);
  EXPECT_EQ(report.groups[0].states[2].call, "barrier at train.cpp:10");
  EXPECT_EQ(report.groups[0].states[2].sequence, 4u);
}

TEST(MergeTraces, FindsTheFirstCallInWhichRanksDiffer) {
  auto traces = in_step(4, 4);
  for (int rank : {0, 1, 3}) traces[rank].calls.push_back(inside(call(5, "all_reduce", 34)));
  traces[2].calls.push_back(inside(call(5, "broadcast", 28)));
  const TraceReport report = merge_traces(traces);
  EXPECT_TRUE(report.wrong);
  const GroupReport& group = report.groups.at(0);
  ASSERT_TRUE(group.divergence);
  EXPECT_EQ(group.divergence->sequence, 5u);
  ASSERT_EQ(group.divergence->calls.size(), 2u);
  EXPECT_EQ(group.divergence->calls[0].call, "all_reduce at train.cpp:34");
  EXPECT_THAT(group.divergence->calls[0].ranks, ElementsAre(0, 1, 3));
  EXPECT_EQ(group.divergence->calls[1].call, "broadcast at train.cpp:28");
  EXPECT_THAT(group.divergence->calls[1].ranks, ElementsAre(2));
  EXPECT_EQ(group.common->sequence, 4u);
  EXPECT_THAT(all(report.verdict),
              AllOf(HasSubstr("The ranks fell out of step at call #5:\n"
                              "  ranks 0, 1 and 3  all_reduce at train.cpp:34\n"
                              "  rank 2            broadcast at train.cpp:28\n"),
                    HasSubstr("The last call that all made alike was #4 barrier at train.cpp:10."),
                    Not(HasSubstr("different lines"))));
}

TEST(MergeTraces, ASkippedCallShowsInTheLinesBeforeItShowsInTheCalls) {
  auto traces = in_step(2, 3);
  for (auto& trace : traces) trace.calls.push_back(call(4, "all_reduce", 20));
  traces[0].calls.push_back(call(5, "all_reduce", 21));
  traces[1].calls.push_back(call(5, "all_reduce", 30));  // skipped the call of line 21
  traces[0].calls.push_back(inside(call(6, "all_reduce", 30)));
  traces[1].calls.push_back(inside(call(6, "barrier", 31)));
  const TraceReport report = merge_traces(traces);
  EXPECT_EQ(report.groups[0].divergence->sequence, 6u);
  ASSERT_TRUE(report.groups[0].different_lines);
  EXPECT_EQ(report.groups[0].different_lines->sequence, 5u);
  EXPECT_THAT(all(report.verdict),
              HasSubstr("Already #5 was the same operation from different lines; one of them may "
                        "be a call too many or too few:\n"
                        "  rank 0  all_reduce at train.cpp:21\n"
                        "  rank 1  all_reduce at train.cpp:30\n"));
}

TEST(MergeTraces, SaysWhoStoppedEarlierAndInWhatItIs) {
  auto traces = in_step(3, 40);
  for (int rank : {0, 2}) traces[rank].calls.push_back(inside(call(41, "all_reduce", 34)));
  const TraceReport report = merge_traces(traces);
  EXPECT_TRUE(report.wrong);
  EXPECT_FALSE(report.groups[0].divergence);
  EXPECT_EQ(report.groups[0].states[1].behind, 1u);
  EXPECT_FALSE(report.groups[0].states[1].inside);
  EXPECT_NEAR(report.groups[0].states[1].seconds.value(), 59, 1e-6);
  EXPECT_NEAR(report.groups[0].states[0].seconds.value(), 59, 1e-6);
  EXPECT_THAT(
      all(report.verdict),
      AllOf(HasSubstr("ranks 0 and 2 came to #41 all_reduce at train.cpp:34; the others have not "
                      "called it."),
            HasSubstr("rank 1 is 1 call behind: it left #40 barrier at train.cpp:10 59 s before "
                      "and has called nothing since.")));
}

TEST(MergeTraces, ARankThatIsStuckInAnEarlierCall) {
  auto traces = in_step(2, 3);
  traces[0].calls.back().ended = 0;
  traces[1].calls.push_back(inside(call(4, "all_reduce", 34)));
  EXPECT_THAT(
      all(merge_traces(traces).verdict),
      HasSubstr("rank 0 is 1 call behind: it has been inside #3 barrier at train.cpp:10 for "
                "1 min 37 s."));
}

TEST(MergeTraces, ARankThatNeverCalledIsNamed) {
  auto traces = in_step(2, 2);
  traces.push_back(trace_of_rank(2, 3));
  for (auto& trace : traces) trace.world_size = 3;
  const TraceReport report = merge_traces(traces);
  EXPECT_THAT(all(report.verdict), HasSubstr("rank 2 is 2 calls behind: it has made no collective "
                                             "call yet."));
  EXPECT_THAT(format_report(report), HasSubstr("no call"));
}

TEST(MergeTraces, RanksWithoutAFileAreNamed) {
  auto traces = in_step(2, 2);
  for (auto& trace : traces) trace.world_size = 4;
  const TraceReport report = merge_traces(traces);
  EXPECT_TRUE(report.wrong);
  EXPECT_THAT(report.missing, ElementsAre(2, 3));
  EXPECT_THAT(all(report.verdict), HasSubstr("No trace of ranks 2 and 3: "));
  EXPECT_THAT(format_report(report), HasSubstr("Traces of 2 of 4 ranks"));
  EXPECT_THAT(format_report(report, 20), HasSubstr("Traces of 2 of 4\nranks")) << "no torn words";
}

TEST(MergeTraces, FilesOfAnEarlierJobAreLeftOut) {
  auto traces = in_step(2, 2);
  auto older = trace_of_rank(2, 3);
  older.now.unix_ns -= 50 * static_cast<int64_t>(kSecond);  // another number of ranks
  traces.push_back(older);
  EXPECT_THAT(merge_traces(traces).stale, ElementsAre(2));
  traces = in_step(2, 2);
  traces[1].now.unix_ns = kEpoch - 1;  // written before rank 0's job began
  traces[1].entered.unix_ns = kEpoch - 100;
  const TraceReport report = merge_traces(traces);
  EXPECT_THAT(report.stale, ElementsAre(1));
  EXPECT_THAT(report.missing, ElementsAre(1));
}

TEST(MergeTraces, WhatWasOverwrittenIsNotMissed) {
  auto traces = in_step(2, 2000);
  // Rank 1's board holds fewer of them.
  traces[1].calls.erase(traces[1].calls.begin(), traces[1].calls.begin() + 976);
  EXPECT_FALSE(merge_traces(traces).wrong);
}

TEST(MergeTraces, CommunicatorsAreComparedEachByItself) {
  auto traces = in_step(4, 2);
  for (int rank : {1, 3}) {
    CallRecord mine = call(1, rank == 1 ? "all_reduce" : "barrier", 50);
    mine.group = 77;
    mine.begun += 10 * kSecond;
    traces[rank].calls.push_back(mine);
  }
  const TraceReport report = merge_traces(traces);
  ASSERT_EQ(report.groups.size(), 2u);
  EXPECT_FALSE(report.groups[0].divergence);
  EXPECT_THAT(report.groups[1].ranks, ElementsAre(1, 3));
  ASSERT_TRUE(report.groups[1].divergence);
  EXPECT_THAT(
      all(report.verdict),
      HasSubstr("The ranks fell out of step at call #1 of communicator 2 (ranks 1 and 3):"));
}

TEST(MergeTraces, ASecondCommunicatorOfTheSameNameStartsAnew) {
  auto traces = in_step(2, 3);
  for (auto& trace : traces) trace.calls.push_back(call(1, "broadcast", 99));
  const TraceReport report = merge_traces(traces);
  EXPECT_FALSE(report.wrong);
  EXPECT_EQ(report.groups[0].states[0].sequence, 1u);
}

TEST(MergeTraces, PendingMessagesAreShown) {
  auto traces = in_step(2, 1);
  CallRecord receive = inside(call(1, "recv", 60));
  receive.moving = 2;
  receive.peer = 1;
  traces[0].calls.push_back(receive);
  const TraceReport report = merge_traces(traces);
  EXPECT_THAT(report.groups[0].states[0].moves,
              ElementsAre("recv from rank 1 at train.cpp:60, for 1 min 39 s"));
  EXPECT_THAT(format_report(report), HasSubstr("recv from rank 1"));
}

TEST(MergeTraces, AllInsideTheSameCallIsToldApartFromBeingOutOfStep) {
  auto traces = in_step(2, 1);
  for (auto& trace : traces) trace.calls.push_back(inside(call(2, "all_reduce", 34)));
  const TraceReport report = merge_traces(traces);
  EXPECT_FALSE(report.wrong);
  EXPECT_THAT(all(report.verdict), HasSubstr("All its ranks are inside #2 all_reduce"));
}

TEST(MergeTraces, NothingToMergeIsAnError) {
  EXPECT_THROW(merge_traces({}), DataError);
  EXPECT_FALSE(merge_traces({trace_of_rank(0, 1)}).wrong) << "one rank, no call";
}

TEST(MergeTraces, PendingRemoteCallsAreListedTheOldestFirst) {
  auto traces = in_step(2, 1);
  const auto remote = [](const std::string& op, const std::string& note, uint64_t begun) {
    CallRecord record;
    record.moving = op == "rpc" ? 3 : 4;
    record.begun = 1 + begun * kSecond;
    op.copy(record.op, sizeof record.op - 1);
    note.copy(record.note, sizeof record.note - 1);
    return record;
  };
  traces[1].calls.push_back(remote("rpc", "'pull' on 'ps'", 80));
  traces[0].calls.push_back(remote("serves", "'push' of 't1'", 40));
  auto over = remote("rpc", "'done' on 'ps'", 10);
  over.ended = over.begun + 1;
  traces[1].calls.push_back(over);
  const TraceReport report = merge_traces(traces);
  EXPECT_FALSE(report.wrong);
  EXPECT_THAT(all(report.verdict),
              HasSubstr("the oldest is rank 0's serves 'push' of 't1', for 1 min 00 s"));
  EXPECT_THAT(format_report(report),
              AllOf(HasSubstr("pending for a second"), HasSubstr("rpc 'pull' on 'ps'"),
                    Not(HasSubstr("'done'"))));
  EXPECT_EQ(json_of(report).at("remote").size(), 2u);
  EXPECT_THAT(json_of(report).at("remote_cut"), IsEmpty());
  for (uint64_t i = 0; i < trace::CallBoard::kRemoteRecords; ++i)
    traces[1].calls.push_back(remote("rpc", "'pull' on 'ps'", 90));
  EXPECT_THAT(format_report(merge_traces(traces)),
              HasSubstr("Of rank 1 these are the 256 oldest, the most that are recorded"));
}

TEST(MergeTraces, TheReportIsJsonToo) {
  auto traces = in_step(2, 1);
  traces[0].calls.push_back(inside(call(2, "all_reduce", 34)));
  const auto json = json_of(merge_traces(traces));
  EXPECT_EQ(json.at("world_size"), 2);
  EXPECT_EQ(json.at("groups")[0].at("states")[1].at("behind"), 1);
  EXPECT_TRUE(json.at("groups")[0].at("divergence").is_null());
  EXPECT_EQ(json.at("wrong"), true);
}

TEST(RankList, IsShort) {
  EXPECT_EQ(rank_list({0}), "0");
  EXPECT_EQ(rank_list({0, 1}), "0 and 1");
  EXPECT_EQ(rank_list({0, 1, 2, 3, 7}), "0 to 3 and 7");
  EXPECT_EQ(rank_list({0, 2, 4, 5, 6}), "0, 2 and 4 to 6");
}

}  // namespace doctor_trace_test
}  // namespace lockstep::inline v0::cli
