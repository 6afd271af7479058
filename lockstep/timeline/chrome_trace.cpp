#include "lockstep/timeline/chrome_trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::timeline {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTraceVersion = 1;
constexpr int kKindStride = 1000;  // numbers of threads for each kind of track
constexpr int kThreadStride = 4;   // and for each thread's lanes

// A time of the format: microseconds, with nanoseconds behind the point.
double micros(int64_t ns) {
  return static_cast<double>(ns) / 1000;
}

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A track: of which kind and thread, and which lane.
struct TrackKey {
  TrackKind kind = TrackKind::kLoop;
  int thread = 0;
  int lane = 0;

  // Tracks stand in the order of their numbers.
  int number() const {
    const int within = kind == TrackKind::kThread ? thread * kThreadStride + lane : lane;
    return 1 + static_cast<int>(kind) * kKindStride + std::min(within, kKindStride - 1);
  }
  std::string name() const {
    static const char* const kNames[kTrackKinds] = {"loop",     "thread", "collectives", "waits",
                                                    "messages", "remote", "device"};
    std::string text = kNames[static_cast<int>(kind)];
    if (kind == TrackKind::kThread) text += " " + std::to_string(thread);
    if (lane > 0) text += " (" + std::to_string(lane + 1) + ")";
    return text;
  }
};

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
  for (auto& [kind_and_thread, events] : by_track) {
    const auto kind = static_cast<TrackKind>(kind_and_thread.first);
    const std::vector<int> lanes = lanes_of(events);
    const int most = *std::max_element(lanes.begin(), lanes.end());
    const auto track = [&](int lane) { return TrackKey{kind, kind_and_thread.second, lane}; };
    for (int lane = 0; lane <= most; ++lane) {
      add(named("thread_name", rank.rank, track(lane).number(), {{"name", track(lane).name()}}));
      add(named("thread_sort_index", rank.rank, track(lane).number(),
                {{"sort_index", track(lane).number()}}));
    }
    for (size_t i = 0; i < events.size(); ++i)
      add(json_of(events[i], rank.rank, track(lanes[i]).number(), base_ns, rank.ahead_ns));
  }
  return text;
}

std::string format_file(const std::vector<std::string>& events,
                        const std::vector<RankEvents>& ranks, const std::string& steps) {
  Json of_ranks = Json::array();
  for (const RankEvents& rank : ranks)
    of_ranks.push_back({{"rank", rank.rank},
                        {"host", rank.host},
                        {"clock_ahead_us", micros(rank.ahead_ns)},
                        {"clock_error_us", micros(rank.ahead_error_ns)},
                        {"lost_spans", rank.lost_spans},
                        {"lost_operators", rank.lost_operators},
                        {"lost_calls", rank.lost_calls}});
  std::string text = "{\"traceEvents\":[\n";
  bool first = true;
  for (const std::string& lines : events) {
    if (lines.empty()) continue;
    text += (first ? "" : ",\n") + lines;
    first = false;
  }
  const Json other = {{"lockstep_trace", kTraceVersion}, {"steps", steps}, {"ranks", of_ranks}};
  return text + "\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":" + dumped(other) + "}\n";
}

ReadTrace parse_file(const std::string& text, const std::string& name) {
  const auto wrong = [&](const std::string& what) {
    return DataError(name + ": " + what +
                     "; lockstep train --trace-steps and lockstep::Timeline write such a file");
  };
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw wrong("not JSON, or cut off");
  const auto ns = [](const Json& value) { return std::llround(value.get<double>() * 1000); };
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
