#include "lockstep/trace/trace_file.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>

#include <nlohmann/json.hpp>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/ticks.h"
#include "lockstep/trace/field_text.h"

namespace lockstep::inline v0::trace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTraceVersion = 1;
constexpr int kMaxTraceRanks = 1 << 24;

template <size_t kSize>
void copy_text(const std::string& text, char (&field)[kSize]) {
  text.copy(field, kSize - 1);
}

std::string hex(uint64_t value) {
  char text[19];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

uint64_t parse_hex(const std::string& text) {
  size_t used = 0;
  const uint64_t value = std::stoull(text, &used, 16);
  if (used != text.size()) throw std::invalid_argument("not hexadecimal");
  return value;
}

Json json_of(const CallRecord& call) {
  return {{"group", call.group},
          {"sequence", call.sequence},
          {"fingerprint", hex(call.fingerprint)},
          {"op", field_text(call.op)},
          {"reduce", field_text(call.reduce)},
          {"dtype", field_text(call.dtype)},
          {"elements", call.elements},
          {"root", call.root},
          {"peer", call.peer},
          {"tag", call.tag},
          {"moving", call.moving},
          {"file", field_text(call.file)},
          {"line", call.line},
          {"note", field_text(call.note)},
          {"begun", call.begun},
          {"ended", call.ended}};
}

CallRecord call_of(const Json& json) {
  CallRecord call;
  json.at("group").get_to(call.group);
  json.at("sequence").get_to(call.sequence);
  call.fingerprint = parse_hex(json.at("fingerprint").get<std::string>());
  copy_text(json.at("op").get<std::string>(), call.op);
  copy_text(json.at("reduce").get<std::string>(), call.reduce);
  copy_text(json.at("dtype").get<std::string>(), call.dtype);
  json.at("elements").get_to(call.elements);
  json.at("root").get_to(call.root);
  json.at("peer").get_to(call.peer);
  json.at("tag").get_to(call.tag);
  json.at("moving").get_to(call.moving);
  copy_text(json.at("file").get<std::string>(), call.file);
  json.at("line").get_to(call.line);
  copy_text(json.at("note").get<std::string>(), call.note);
  json.at("begun").get_to(call.begun);
  json.at("ended").get_to(call.ended);
  return call;
}

// "rank12.json" gives 12, other names -1.
int rank_of_name(const std::string& name) {
  static constexpr std::string_view kStart = "rank", kEnd = ".json";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd) ||
      name.size() <= kStart.size() + kEnd.size())
    return -1;
  const auto digits =
      std::string_view(name).substr(kStart.size(), name.size() - kStart.size() - kEnd.size());
  return static_cast<int>(parse_int(digits, 0, kMaxTraceRanks).value_or(-1));
}

}  // namespace

int64_t TraceFile::unix_ns(uint64_t ticks) const {
  if (entered.ticks == 0 || now.ticks <= entered.ticks || now.unix_ns <= entered.unix_ns) return 0;
  const double rate = static_cast<double>(now.unix_ns - entered.unix_ns) /
                      static_cast<double>(now.ticks - entered.ticks);
  // From the reading that is nearer to the requested ticks: its error is then small.
  const auto ago = static_cast<double>(static_cast<int64_t>(now.ticks - ticks));
  return now.unix_ns - std::llround(ago * rate);
}

BoardClock read_clock() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return {ticks(), int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec};
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "?";
  return name;
}

std::string trace_file_name(int rank) {
  return "rank" + std::to_string(rank) + ".json";
}

TraceFile trace_of(const CallBoard& board, int local_rank, int rank, int world_size,
                   const std::string& reason) {
  TraceFile trace;
  trace.rank = rank;
  trace.world_size = world_size;
  trace.local_rank = local_rank;
  trace.host = host_name();
  trace.pid = board.pid(local_rank);
  trace.reason = reason;
  trace.entered = board.entered(local_rank);
  trace.calls = board.records(local_rank);
  trace.now = read_clock();
  return trace;
}

std::string format_trace(const TraceFile& trace) {
  Json json = {{"version", kTraceVersion},
               {"rank", trace.rank},
               {"world_size", trace.world_size},
               {"local_rank", trace.local_rank},
               {"host", trace.host},
               {"pid", trace.pid},
               {"reason", trace.reason},
               {"clock",
                {{"entered_ticks", trace.entered.ticks},
                 {"entered_unix_ns", trace.entered.unix_ns},
                 {"now_ticks", trace.now.ticks},
                 {"now_unix_ns", trace.now.unix_ns}}}};
  // One line per call, so that such a file can be read and searched directly.
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.pop_back();
  text += ",\"calls\":[";
  for (size_t i = 0; i < trace.calls.size(); ++i) {
    text += i == 0 ? "\n" : ",\n";
    text += json_of(trace.calls[i]).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return text + "\n]}\n";
}

TraceFile parse_trace(const std::string& text, const std::string& name) {
  const auto wrong = [&](const std::string& what) {
    return DataError(name + ": " + what +
                     "; a trace file is written by lockstep run --trace-dir or with "
                     "LOCKSTEP_TRACE_DIR");
  };
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw wrong("not JSON, or cut off");
  TraceFile trace;
  try {
    const int version = json.at("version").get<int>();
    if (version != kTraceVersion)
      throw wrong("version " + std::to_string(version) + " is not known, only " +
                  std::to_string(kTraceVersion));
    json.at("rank").get_to(trace.rank);
    json.at("world_size").get_to(trace.world_size);
    json.at("local_rank").get_to(trace.local_rank);
    json.at("host").get_to(trace.host);
    json.at("pid").get_to(trace.pid);
    json.at("reason").get_to(trace.reason);
    const Json& clock = json.at("clock");
    clock.at("entered_ticks").get_to(trace.entered.ticks);
    clock.at("entered_unix_ns").get_to(trace.entered.unix_ns);
    clock.at("now_ticks").get_to(trace.now.ticks);
    clock.at("now_unix_ns").get_to(trace.now.unix_ns);
    if (!json.at("calls").is_array()) throw wrong("\"calls\" is not a list");
    for (const Json& call : json.at("calls")) trace.calls.push_back(call_of(call));
  } catch (const Json::exception& error) {
    throw wrong(std::string("not as expected (") + error.what() + ")");
  } catch (const std::logic_error&) {
    throw wrong("a fingerprint is not a hexadecimal number");
  }
  if (trace.world_size < 1 || trace.rank < 0 || trace.rank >= trace.world_size)
    throw wrong("rank " + std::to_string(trace.rank) + " of " + std::to_string(trace.world_size) +
                " cannot be");
  return trace;
}

std::filesystem::path write_trace(const std::filesystem::path& directory, const TraceFile& trace) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw system_error("cannot make " + directory.string(), error.value());
  const std::filesystem::path path = directory / trace_file_name(trace.rank);
  write_file_aside(path, format_trace(trace));
  return path;
}

TraceFile read_trace(const std::filesystem::path& file) {
  std::string text;
  try {
    text = read_named_file(file);
  } catch (const InvalidArgument& error) {
    throw DataError(error.what());
  }
  TraceFile trace = parse_trace(text, file.string());
  const int named = rank_of_name(file.filename().string());
  if (named >= 0 && named != trace.rank)
    throw DataError(file.string() + " says that it is of rank " + std::to_string(trace.rank) +
                    "; it was renamed or mixed up");
  return trace;
}

std::vector<TraceFile> read_traces(const std::filesystem::path& directory) {
  std::vector<TraceFile> traces;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (rank_of_name(entry.path().filename().string()) >= 0)
      traces.push_back(read_trace(entry.path()));
  }
  if (error)
    throw DataError(directory.string() + " cannot be read as a folder: " + error.message());
  if (traces.empty())
    throw DataError(directory.string() +
                    " has no rank*.json; they are written when a job fails, or on SIGUSR1 to "
                    "lockstep run, with --trace-dir or LOCKSTEP_TRACE_DIR");
  std::sort(traces.begin(), traces.end(),
            [](const TraceFile& a, const TraceFile& b) { return a.rank < b.rank; });
  return traces;
}

}  // namespace lockstep::inline v0::trace
