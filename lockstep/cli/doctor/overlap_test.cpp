#include "lockstep/cli/doctor/overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::cli::doctor_overlap_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMs = 1'000'000;

OverlapReport two_ranks() {
  OverlapReport report{.file = "r/trace.json", .trace = {}, .ranks = {}};
  report.trace.steps = "10:11";
  report.ranks = {{.rank = 0,
                   .steps = 2,
                   .time = 200 * kMs,
                   .collectives = 8,
                   .communication = 40 * kMs,
                   .hidden = 20 * kMs,
                   .beside = 10 * kMs,
                   .waited = 10 * kMs,
                   .waited_in_backward = 6 * kMs},
                  {.rank = 1,
                   .steps = 2,
                   .time = 200 * kMs,
                   .collectives = 8,
                   .communication = 20 * kMs,
                   .hidden = 0,
                   .beside = 0,
                   .waited = 20 * kMs,
                   .waited_in_backward = 0}};
  return report;
}

TEST(DoctorOverlap, BarsAreAsLongAsTheCommunication) {
  const std::string text = format_overlap(two_ranks(), 100);
  const std::string all(30, '#'), beside(15, '+'), waited(15, '.');
  EXPECT_THAT(text, HasSubstr("rank 0 |" + all + beside + waited + "| 75 % hidden\n"));
  EXPECT_THAT(text, HasSubstr("rank 1 |" + std::string(30, '.') + "| 0 % hidden\n"));
  EXPECT_THAT(text, AllOf(HasSubstr("Timeline of 2 ranks, steps 10:11: r/trace.json"),
                          HasSubstr("Over all ranks 50 % of the time in collectives was hidden"),
                          Not(HasSubstr("missing")), Not(HasSubstr("No steps"))));
  // Milliseconds of a step: 100, 20 in collectives, 10 hidden, 5 beside, 5 waited, 3 in backward.
  EXPECT_THAT(text, HasSubstr(" 100.00 "));
  EXPECT_THAT(text, HasSubstr(" 20.00 "));
  EXPECT_THAT(text, HasSubstr(" 3.00\n"));
}

TEST(DoctorOverlap, TellsWhatIsMissing) {
  OverlapReport report = two_ranks();
  report.trace.lost_operators = 7;
  report.trace.lost_calls = 9;
  for (auto& rank : report.ranks) rank.steps = 0;
  EXPECT_THAT(format_overlap(report, 100),
              AllOf(HasSubstr("7 operators found no room"), HasSubstr("9 calls were overwritten"),
                    HasSubstr("No steps are marked")));
  report.trace.lost_spans = 3;
  EXPECT_THAT(format_overlap(report, 100), AllOf(HasSubstr("3 marked spans found no room"),
                                                 Not(HasSubstr("hidden\n")), Not(HasSubstr("#"))));
  EXPECT_TRUE(json_of(report)["ranks"].empty());
  report.trace.lost_spans = 0;
  for (auto& rank : report.ranks) rank = {.rank = rank.rank, .steps = 1};
  EXPECT_THAT(format_overlap(report), HasSubstr("There was no collective"));
  report.ranks.clear();
  EXPECT_THAT(format_overlap(report), HasSubstr("It has no events."));
  EXPECT_EQ(json_of(two_ranks())["ranks"][0]["hidden_in_backward_ns"], 20 * kMs);
}

TEST(DoctorOverlap, FindsTheFileOfAFolder) {
  const TestDirectory dir;
  EXPECT_FALSE(read_overlap(dir.path()));
  EXPECT_FALSE(read_overlap(dir / "nowhere"));
  timeline::RankEvents rank;
  const auto add = [&](const char* name, const char* category, timeline::TrackKind track,
                       int64_t begin, int64_t end) {
    rank.events.push_back(
        {.name = name, .category = category, .track = track, .begin_ns = begin, .end_ns = end});
  };
  add("step", timeline::kMarked, timeline::TrackKind::kLoop, 0, 100'000);
  add("backward", timeline::kMarked, timeline::TrackKind::kLoop, 20'000, 80'000);
  add("all_reduce", timeline::kCollective, timeline::TrackKind::kCollectives, 30'000, 90'000);
  const std::string file = timeline::format_file({timeline::format_events(rank, 0)}, {rank}, "3:3");
  const auto path = dir.write("trace.json", file);
  for (const auto& given : {dir.path(), path}) {
    const auto report = read_overlap(given);
    ASSERT_TRUE(report);
    ASSERT_EQ(report->ranks.size(), 1U);
    EXPECT_EQ(report->ranks[0].hidden, 50'000);
    EXPECT_EQ(report->ranks[0].beside, 10'000);
    EXPECT_EQ(report->file, path.string());
  }
  dir.write("trace.json", "{");
  EXPECT_THROW(read_overlap(dir.path()), DataError);
}

// Each is named in one line that tells of which file it speaks.
TEST(DoctorOverlap, AFileOfAnotherProgramOrADamagedOneIsNamed) {
  const TestDirectory dir;
  const auto error_of = [&](const std::string& text) -> std::string {
    const auto path = dir.write("trace.json", text);
    try {
      read_overlap(path);
    } catch (const DataError& error) {
      const std::string said = error.what();
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      EXPECT_EQ(said.rfind(path.string() + ": ", 0), 0U) << said;
      EXPECT_THAT(said, HasSubstr("; lockstep train --trace-steps and "));
      return said.substr(path.string().size() + 2);
    }
    return "no error";
  };
  // PyTorch's profiler (export_chrome_trace).
  const std::string profiler = R"({
  "schemaVersion": 1,
  "deviceProperties": [],
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1750000000000000000,
  "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 71, "tid": 71, "ts": 5.25, "dur": 2.5,
   "args": {"External id": 1}},
  {"ph": "i", "s": "t", "name": "[memory]", "pid": 71, "tid": 71, "ts": 5.5, "args": {}},
  {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "ts": 0, "args": {"name": "python"}}
  ], "traceName": "trace.json"})";
  const auto another = HasSubstr("a trace of another program, or none");
  EXPECT_THAT(error_of(profiler), another);
  // Chrome's form without an object around it.
  EXPECT_THAT(error_of(R"([{"ph":"B","name":"a","pid":1,"tid":1,"ts":0}])"), another);
  EXPECT_THAT(error_of(R"({"traceEvents":[],"otherData":{"version":"My Application v1.0"}})"),
              another);
  EXPECT_THAT(error_of(R"({"traceEvents":[],"otherData":"a text"})"), another);
  EXPECT_THAT(error_of("17"), another);
  // The flight recorder's file of a rank.
  EXPECT_THAT(error_of(R"({"version":1,"rank":0,"world_size":1,"calls":[]})"), another);
  // Perfetto's own format is binary: packets of protocol buffers. Others are compressed.
  EXPECT_THAT(error_of(std::string("\x0a\x1a\x08\x01\x50\x01\xc2\x02\x00", 9)),
              HasSubstr("not JSON;"));
  EXPECT_THAT(error_of("\x1f\x8b\x08"), HasSubstr("not JSON;"));
  EXPECT_THAT(error_of("a text\n"), HasSubstr("not JSON;"));
  EXPECT_THAT(error_of(""), HasSubstr("empty;"));
  EXPECT_THAT(error_of(std::string(100'000, '[')), HasSubstr("not JSON, or cut off;"));

  timeline::RankEvents rank;
  rank.events.push_back({.name = "step", .category = timeline::kMarked, .end_ns = 1000});
  const std::string whole = timeline::format_file({timeline::format_events(rank, 0)}, {rank}, "1");
  EXPECT_EQ(error_of(whole), "no error");
  for (size_t size = 1; size + 2 < whole.size(); size += 7)
    EXPECT_THAT(error_of(whole.substr(0, size)), HasSubstr("not JSON, or cut off;")) << size;
  std::string other = whole;
  other.replace(other.find("\"ts\":"), 5, "\"when\":");
  EXPECT_THAT(error_of(other), HasSubstr("not as expected"));
}

}  // namespace lockstep::inline v0::cli::doctor_overlap_test
