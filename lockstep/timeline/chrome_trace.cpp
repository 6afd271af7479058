#include "lockstep/timeline/chrome_trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::timeline {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTraceVersion = 1;
// A greater number of microseconds cannot be one of a trace, and its nanoseconds may not fit.
constexpr double kLongest = 1e15;

// A time of the format: microseconds, with nanoseconds behind the point.
double micros(int64_t ns) {
  return static_cast<double>(ns) / 1000;
}

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string track_name(TrackKind kind, int thread, int lane) {
  static const char* const kNames[kTrackKinds] = {"loop",     "thread", "collectives", "waits",
                                                  "messages", "remote", "device"};
  std::string text = kNames[static_cast<int>(kind)];
  if (kind == TrackKind::kThread) text += " " + std::to_string(thread);
  if (lane > 0) text += " (" + std::to_string(lane + 1) + ")";
  return text;
}

Json named(const char* what, int rank, int track, const Json& arguments) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", track}, {"args", arguments}};
}

Json json_of(const Event& event, int rank, int track, int64_t base_ns, int64_t ahead_ns) {
  Json json = {{"name", event.name},
               {"cat", event.category},
               {"ph", "X"},
               {"ts", micros(event.begin_ns - ahead_ns - base_ns)},
               {"dur", micros(std::max<int64_t>(0, event.end_ns - event.begin_ns))},
               {"pid", rank},
               {"tid", track}};
  Json arguments = Json::object();
  for (const auto& [name, value] : event.numbers) arguments[name] = value;
  for (const auto& [name, value] : event.texts) arguments[name] = value;
  if (!arguments.empty()) json["args"] = arguments;
  return json;
}

// PyTorch's profiler and others write the same format, without what the reader asks for.
bool is_ours(const Json& json) {
  const auto other = json.is_object() ? json.find("otherData") : json.end();
  return other != json.end() && other->is_object() && other->contains("lockstep_trace");
}

}  // namespace

std::vector<int> lanes_of(const std::vector<Event>& events) {
  std::vector<size_t> order(events.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (events[a].begin_ns != events[b].begin_ns) return events[a].begin_ns < events[b].begin_ns;
    return events[a].end_ns > events[b].end_ns;
  });
  std::vector<int> lanes(events.size());
  std::vector<std::vector<int64_t>> open;  // in each lane the ends of what an event lies within
  for (const size_t i : order) {
    const Event& event = events[i];
    size_t lane = 0;
    for (; lane < open.size(); ++lane) {
      std::vector<int64_t>& ends = open[lane];
      while (!ends.empty() && ends.back() <= event.begin_ns) ends.pop_back();
      if (ends.empty() || event.end_ns <= ends.back()) break;
    }
    if (lane == open.size()) open.emplace_back();
    open[lane].push_back(event.end_ns);
    lanes[i] = static_cast<int>(lane);
  }
  return lanes;
}

std::string format_events(const RankEvents& rank, int64_t base_ns) {
  std::map<std::pair<int, int>, std::vector<Event>> by_track;  // of a kind and a thread
  for (const Event& event : rank.events) {
    const int thread = event.track == TrackKind::kThread ? event.thread : 0;
    by_track[{static_cast<int>(event.track), thread}].push_back(event);
  }
  std::string text;
  const auto add = [&](const Json& json) { text += (text.empty() ? "" : ",\n") + dumped(json); };
  const std::string title =
      "rank " + std::to_string(rank.rank) + (rank.host.empty() ? "" : " on " + rank.host);
  add(named("process_name", rank.rank, 0, {{"name", title}}));
  add(named("process_sort_index", rank.rank, 0, {{"sort_index", rank.rank}}));
  int next_track = 1;  // tracks stand in the order of their numbers
  for (const auto& [kind_and_thread, events] : by_track) {
    const auto kind = static_cast<TrackKind>(kind_and_thread.first);
    const std::vector<int> lanes = lanes_of(events);
    const int first = next_track;
    next_track += 1 + *std::max_element(lanes.begin(), lanes.end());
    for (int track = first; track < next_track; ++track) {
      const std::string name = track_name(kind, kind_and_thread.second, track - first);
      add(named("thread_name", rank.rank, track, {{"name", name}}));
      add(named("thread_sort_index", rank.rank, track, {{"sort_index", track}}));
    }
    for (size_t i = 0; i < events.size(); ++i)
      add(json_of(events[i], rank.rank, first + lanes[i], base_ns, rank.ahead_ns));
  }
  return text;
}

std::string file_end(const std::vector<RankEvents>& ranks, const std::string& steps) {
  Json of_ranks = Json::array();
  for (const RankEvents& rank : ranks)
    of_ranks.push_back({{"rank", rank.rank},
                        {"host", rank.host},
                        {"clock_ahead_us", micros(rank.ahead_ns)},
                        {"clock_error_us", micros(rank.ahead_error_ns)},
                        {"lost_spans", rank.lost_spans},
                        {"lost_operators", rank.lost_operators},
                        {"lost_calls", rank.lost_calls}});
  const Json other = {{"lockstep_trace", kTraceVersion}, {"steps", steps}, {"ranks", of_ranks}};
  return "\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":" + dumped(other) + "}\n";
}

std::string format_file(const std::vector<std::string>& events,
                        const std::vector<RankEvents>& ranks, const std::string& steps) {
  std::string text(kFileBegin);
  bool first = true;
  for (const std::string& lines : events) {
    if (lines.empty()) continue;
    if (!std::exchange(first, false)) text += kFileBetween;
    text += lines;
  }
  return text + file_end(ranks, steps);
}

ReadTrace parse_file(const std::string& text, const std::string& name) {
  const auto wrong = [&](const std::string& what) {
    return DataError(name + ": " + what +
                     "; lockstep train --trace-steps and lockstep::Timeline write such a file");
  };
  if (text.empty()) throw wrong("empty");
  const Json json = Json::parse(text, nullptr, false);
  const bool begins_well = text.find_first_of("{[") == text.find_first_not_of(" \t\r\n");
  if (json.is_discarded()) throw wrong(begins_well ? "not JSON, or cut off" : "not JSON");
  if (!is_ours(json))
    throw wrong("a trace of another program, or none: it has no otherData.lockstep_trace");
  const auto ns = [&](const Json& value) {
    const auto us = value.get<double>();
    if (!(std::abs(us) <= kLongest)) throw wrong("a time in it is out of range");
    return std::llround(us * 1000);
  };
  ReadTrace trace;
  try {
    const Json& other = json.at("otherData");
    if (const int version = other.at("lockstep_trace").get<int>(); version != kTraceVersion)
      throw wrong("version " + std::to_string(version) + " is not known, only " +
                  std::to_string(kTraceVersion));
    other.at("steps").get_to(trace.steps);
    for (const Json& rank : other.at("ranks")) {
      trace.lost_spans += rank.at("lost_spans").get<int64_t>();
      trace.lost_operators += rank.at("lost_operators").get<int64_t>();
      trace.lost_calls += rank.at("lost_calls").get<int64_t>();
      trace.clock_error_ns = std::max<int64_t>(trace.clock_error_ns, ns(rank.at("clock_error_us")));
    }
    for (const Json& event : json.at("traceEvents")) {
      if (event.at("ph").get<std::string>() != "X") continue;
      ReadEvent read;
      event.at("pid").get_to(read.rank);
      event.at("name").get_to(read.name);
      event.at("cat").get_to(read.category);
      read.begin_ns = ns(event.at("ts"));
      read.end_ns = read.begin_ns + ns(event.at("dur"));
      if (read.category == kMarked && read.name == "step" && event.contains("args"))
        read.step = event.at("args").value("number", int64_t{-1});
      trace.events.push_back(std::move(read));
    }
  } catch (const Json::exception& error) {
    throw wrong(std::string("not as expected (") + error.what() + ")");
  }
  return trace;
}

}  // namespace lockstep::inline v0::timeline
