// ChromeTrace: events of all ranks as one file that ui.perfetto.dev and chrome://tracing open, in
// the Trace Event Format (JSON). A rank is a process there, and a track is a thread. Pure.
//
// The file: {"traceEvents": [...], "displayTimeUnit": "ms", "otherData": {"lockstep_trace": 1,
// "steps", "ranks": [{"rank", "host", "clock_ahead_us", "clock_error_us", "lost_spans",
// "lost_operators", "lost_calls"}]}}. Times are microseconds of rank 0's host since the first rank began.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::timeline {

// The tracks of a rank, from the top.
enum class TrackKind : int {
  kLoop,         // the thread that trains
  kThread,       // another one
  kCollectives,  // collectives, from the call to their end
  kWaits,        // the time in which the rank did nothing but wait in a call
  kMessages,     // sends and receives
  kRemote,       // remote calls
  kDevice,       // when a device did what was marked
};
inline constexpr int kTrackKinds = 7;  // their number

// Categories, by which a reader finds events.
inline constexpr const char *kMarked = "loop", *kOperator = "operator", *kCollective = "collective",
                            *kWait = "wait", *kMessage = "message", *kRemoteCall = "remote",
                            *kOnDevice = "device";

// Something that took time on a rank.
struct Event {
  std::string name;
  std::string category;
  TrackKind track = TrackKind::kLoop;
  int thread = 0;        // of kThread: which one
  int64_t begin_ns = 0;  // of the rank's host (CLOCK_MONOTONIC)
  int64_t end_ns = 0;
  std::vector<std::pair<std::string, int64_t>> numbers = {};    // "bytes"
  std::vector<std::pair<std::string, std::string>> texts = {};  // "note"
};

// The events that one rank gives to a file.
struct RankEvents {
  int rank = 0;
  std::string host;
  std::vector<Event> events;
  int64_t ahead_ns = 0;  // of its host's clock to rank 0's
  int64_t ahead_error_ns = 0;
  uint64_t lost_spans = 0;      // marked ones, also those of a device
  uint64_t lost_operators = 0;  // libtorch's
  uint64_t lost_calls = 0;
};

// The lane of each event, from 0, so that those of one lane lie within each other or apart. Takes
// the first lane where that is so; longer ones first where they begin together.
LOCKSTEP_API std::vector<int> lanes_of(const std::vector<Event>& events);

// The lines of a rank's events and of its tracks' names, separated by ",\n"; "" for none.
// `base_ns`: time 0 of the file, on rank 0's clock.
LOCKSTEP_API std::string format_events(const RankEvents& rank, int64_t base_ns);
// A file: its begin, the lines of the ranks that have some, with kFileBetween between them, and its
// end. `ranks`: without their events.
inline constexpr std::string_view kFileBegin = "{\"traceEvents\":[\n", kFileBetween = ",\n";
LOCKSTEP_API std::string file_end(const std::vector<RankEvents>& ranks, const std::string& steps);
// The whole file of what format_events() has given for each rank.
LOCKSTEP_API std::string format_file(const std::vector<std::string>& events,
                                     const std::vector<RankEvents>& ranks,
                                     const std::string& steps);

// An event of a file.
struct ReadEvent {
  int rank = 0;
  std::string name;
  std::string category;
  int64_t begin_ns = 0;  // of the file
  int64_t end_ns = 0;
  int64_t step = -1;  // the number of a marked step
};
// A file as it was read.
struct ReadTrace {
  std::vector<ReadEvent> events;
  std::string steps;
  int64_t lost_spans = 0, lost_operators = 0, lost_calls = 0;  // of all ranks
  int64_t clock_error_ns = 0;                                  // the greatest
};
// Throws: DataError that begins with `name`: for what is not a trace of this kind.
LOCKSTEP_API ReadTrace parse_file(const std::string& text, const std::string& name);

}  // namespace lockstep::inline v0::timeline
