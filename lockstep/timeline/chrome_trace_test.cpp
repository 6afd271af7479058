#include "lockstep/timeline/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::timeline::chrome_trace_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Event event(const std::string& name, int64_t begin, int64_t end, TrackKind track = TrackKind::kLoop,
            const char* category = kMarked) {
  return {.name = name, .category = category, .track = track, .begin_ns = begin, .end_ns = end};
}

TEST(Lanes, NestOrLieApart) {
  const std::vector<Event> events{event("a", 0, 10),
                                  event("inside a", 2, 5),
                                  event("inside a, too", 5, 10),
                                  event("after", 10, 12),
                                  event("crosses", 11, 20),
                                  event("within the next", 11, 19),
                                  event("crosses both", 11, 30),
                                  event("crosses all", 11, 30)};
  EXPECT_THAT(lanes_of(events), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(lanes_of({event("a", 0, 10), event("b", 5, 15), event("c", 8, 20)}),
              ElementsAre(0, 1, 2));
  EXPECT_TRUE(lanes_of({}).empty());
}

RankEvents rank_events(int rank, std::vector<Event> events) {
  return {.rank = rank, .host = "host\"1", .events = std::move(events)};
}

TEST(ChromeTrace, HasWhatTheFormatAsksFor) {
  Event step = event("step", 1'000'500, 1'003'000);
  step.numbers = {{"number", 12}};
  const RankEvents first = rank_events(
      0, {step, event("all_reduce", 1'001'000, 1'002'000, TrackKind::kCollectives, kCollective),
          event("all_reduce", 1'001'500, 1'002'500, TrackKind::kCollectives, kCollective)});
  RankEvents second = rank_events(1, {event("step", 5'001'000'000, 5'001'002'000)});
  second.ahead_ns = 5'000'000'000;
  second.ahead_error_ns = 1500;
  second.lost_calls = 3;
  constexpr int64_t kBase = 1'000'000;
  const std::string file = format_file({format_events(first, kBase), format_events(second, kBase)},
                                       {first, second}, "12:12");
  const auto json = nlohmann::json::parse(file);
  std::map<std::pair<int, int>, std::string> tracks;
  std::set<int> processes;
  int complete = 0;
  for (const auto& event : json.at("traceEvents")) {
    const std::string phase = event.at("ph");
    ASSERT_TRUE(phase == "X" || phase == "M") << event;
    const std::pair<int, int> where(event.at("pid"), event.at("tid"));
    if (phase == "M" && event.at("name") == "thread_name") tracks[where] = event["args"]["name"];
    if (phase == "M" && event.at("name") == "process_name") processes.insert(where.first);
    if (phase != "X") continue;
    ++complete;
    EXPECT_TRUE(event.at("ts").is_number());
    EXPECT_TRUE(event.at("dur").is_number());
    EXPECT_GE(event.at("dur").get<double>(), 0);
    EXPECT_TRUE(event.at("cat").is_string());
    EXPECT_TRUE(tracks.count(where)) << "a track is named before its events: " << event;
  }
  EXPECT_EQ(complete, 4);
  EXPECT_EQ(processes, (std::set<int>{0, 1}));
  std::multiset<std::string> names;
  for (const auto& [where, name] : tracks) names.insert(name);
  EXPECT_EQ(names, (std::multiset<std::string>{"collectives", "collectives (2)", "loop", "loop"}));
  const auto& of_second = json["otherData"]["ranks"][1];
  EXPECT_EQ(of_second["clock_ahead_us"], 5e6);
  EXPECT_EQ(of_second["clock_error_us"], 1.5);

  const ReadTrace read = parse_file(file, "trace.json");
  ASSERT_EQ(read.events.size(), 4U);
  EXPECT_EQ(read.steps, "12:12");
  EXPECT_EQ(read.lost_calls, 3);
  EXPECT_EQ(read.clock_error_ns, 1500);
  EXPECT_EQ(read.events[0].name, "step");
  EXPECT_EQ(read.events[0].step, 12);
  EXPECT_EQ(read.events[0].begin_ns, 500);
  EXPECT_EQ(read.events[0].end_ns, 3000);
  // Of the other host's clock nothing is left.
  EXPECT_EQ(read.events[3].rank, 1);
  EXPECT_EQ(read.events[3].begin_ns, 0);
  EXPECT_EQ(read.events[3].end_ns, 2000);
}

TEST(ChromeTrace, TakesAnyText) {
  const RankEvents rank = rank_events(0, {event("a \"b\"\n\xff", 0, 1)});
  const std::string file = format_file({format_events(rank, 0)}, {rank}, "");
  EXPECT_EQ(parse_file(file, "f").events.size(), 1U);
}

TEST(ChromeTrace, ADamagedFileIsNamed) {
  const auto error_of = [](const std::string& text) {
    try {
      parse_file(text, "t/trace.json");
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of("{\"traceEvents\":["), HasSubstr("t/trace.json: not JSON, or cut off; "));
  EXPECT_THAT(error_of(""), HasSubstr("t/trace.json: empty; "));
  EXPECT_THAT(error_of(R"({"traceEvents":[],"otherData":{"lockstep_trace":1,"steps":"1:2"}})"),
              HasSubstr("t/trace.json: not as expected"));
  EXPECT_THAT(error_of(R"({"traceEvents":[],"otherData":{"lockstep_trace":99}})"),
              HasSubstr("version 99 is not known, only 1"));
  const auto with_event = [](const std::string& event) {
    return R"({"traceEvents":[)" + event +
           R"(],"otherData":{"lockstep_trace":1,"steps":"","ranks":[]}})";
  };
  const std::string begin = R"({"ph":"X","pid":0,"tid":1,"name":"step","cat":"loop",)";
  EXPECT_EQ(error_of(with_event(begin + R"("ts":1,"dur":2})")), "no error");
  EXPECT_THAT(error_of(with_event(begin + R"("ts":1})")), HasSubstr("not as expected"));
  EXPECT_THAT(error_of(with_event(begin + R"("ts":"1","dur":2})")), HasSubstr("not as expected"));
  EXPECT_THAT(error_of(with_event(begin + R"("ts":1e300,"dur":2})")), HasSubstr("out of range"));
}

TEST(ChromeTrace, EachOfManyThreadsAndLanesHasATrackOfItsOwn) {
  constexpr int kThreads = 1200;
  std::vector<Event> events;
  for (int thread = 1; thread <= kThreads; ++thread) {
    // The spans of some threads cross, in more lanes than one.
    for (int lane = 0; lane < (thread % 2 == 0 ? 6 : 1); ++lane) {
      events.push_back(event("work", 10 * lane, 100 + 10 * lane, TrackKind::kThread));
      events.back().thread = thread;
    }
  }
  events.push_back(event("all_reduce", 0, 10, TrackKind::kCollectives, kCollective));
  const RankEvents rank = rank_events(0, events);
  const auto json =
      nlohmann::json::parse(format_file({format_events(rank, 0)}, {rank}, "")).at("traceEvents");
  std::map<int, std::string> names;
  std::map<int, int> on_track;
  for (const auto& event : json) {
    const int track = event.at("tid");
    if (event.at("name") == "thread_name") {
      EXPECT_TRUE(names.emplace(track, event.at("args").at("name")).second) << "named twice";
    } else if (event.at("ph") == "X") {
      ++on_track[track];
    }
  }
  EXPECT_EQ(names.size(), kThreads / 2 * 7 + 1U);
  EXPECT_EQ(on_track.size(), names.size());
  for (const auto& [track, count] : on_track) EXPECT_EQ(count, 1) << names[track];
  std::set<std::string> different;
  for (const auto& [track, name] : names) different.insert(name);
  EXPECT_EQ(different.size(), names.size());
}

}  // namespace lockstep::inline v0::timeline::chrome_trace_test
