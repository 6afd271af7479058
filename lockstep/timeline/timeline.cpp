#include "lockstep/timeline/timeline.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>

#include "lockstep/comm/objects.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/timeline/call_events.h"
#include "lockstep/timeline/chrome_trace.h"
#include "lockstep/timeline/device_spans.h"
#include "lockstep/timeline/operator_spans.h"
#include "lockstep/timeline/ranks_clock.h"
#include "lockstep/trace/call_board.h"
#include "lockstep/trace/trace_file.h"

namespace lockstep::inline v0 {
using namespace timeline;
namespace {

nlohmann::json json_of(const RankEvents& rank, size_t bytes) {
  return {{"rank", rank.rank},
          {"host", rank.host},
          {"ahead", rank.ahead_ns},
          {"error", rank.ahead_error_ns},
          {"spans", rank.lost_spans},
          {"calls", rank.lost_calls},
          {"bytes", bytes}};
}

RankEvents rank_of(const nlohmann::json& json) {
  RankEvents rank;
  json.at("rank").get_to(rank.rank);
  json.at("host").get_to(rank.host);
  json.at("ahead").get_to(rank.ahead_ns);
  json.at("error").get_to(rank.ahead_error_ns);
  json.at("spans").get_to(rank.lost_spans);
  json.at("calls").get_to(rank.lost_calls);
  return rank;
}

// The least over all ranks. Collective.
int64_t least_of_ranks(Communicator& comm, int64_t own) {
  const at::Tensor least = at::full({1}, own, at::kLong);
  comm.all_reduce(least, ReduceOp::kMin);
  return least.item<int64_t>();
}

// What rank 0 writes: the texts of all ranks, and what they say of themselves. Empty elsewhere.
// Collective.
std::string gather_file(Communicator& comm, const RankEvents& rank, const std::string& text,
                        const std::string& steps) {
  const std::vector<nlohmann::json> told = gather_object(comm, json_of(rank, text.size()), 0);
  const at::Tensor own = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = comm.gatherv(own, 0);
  if (comm.rank() != 0) return {};
  std::vector<std::string> events;
  std::vector<RankEvents> ranks;
  const char* next = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
  for (const nlohmann::json& json : told) {
    ranks.push_back(rank_of(json));
    const auto size = json.at("bytes").get<size_t>();
    events.emplace_back(next, size);
    next += size;
  }
  return format_file(events, ranks, steps);
}

}  // namespace

void TimelineSpan::begin_on_device(std::string_view name, int64_t number) noexcept {
  place_ = device_->begin(name, number);
}

void TimelineSpan::end_on_device() noexcept {
  device_->end(place_);
}

Timeline::Timeline(const TimelineOptions& options) : options_(options), log_(options.capacity) {}

Timeline::~Timeline() {
  stop();
}

void Timeline::start(const Communicator& comm) {
  stop();
  calls_.clear();
  remote_.clear();
  std::tie(board_, place_) = comm.call_board();
  device_.reset();
  if (!comm.device().is_cpu()) device_ = std::make_shared<DeviceSpans>(comm.device());
  if (board_) {
    board_->watch_ends(true);
    first_call_ = next_call_ = board_->calls(place_);
  }
  begun_ = read_clocks();
  try {
    log_.start();
    if (options_.operators) operators_ = std::make_unique<OperatorSpans>(log_);
  } catch (...) {
    log_.stop();
    if (board_) board_->watch_ends(false);
    begun_ = {};
    throw;
  }
}

void Timeline::stop() noexcept {
  if (!on()) return;
  operators_.reset();
  log_.stop();
  ended_ = read_clocks();
  if (!board_) return;
  board_->watch_ends(false);
  try {
    take_calls();
    for (const trace::CallRecord& call : board_->records(place_))
      if (trace::is_remote(call)) remote_.push_back({.number = 0, .record = call});
  } catch (const std::exception&) {  // out of memory: the calls count as lost
  }
}

void Timeline::collect() {
  if (on() && board_) take_calls();
}

void Timeline::take_calls() {
  bool pending = false;
  for (const trace::KeptCall& call : board_->calls_from(place_, next_call_)) {
    calls_[call.number] = call;
    pending = pending || call.record.ended == 0;
    if (!pending) next_call_ = call.number + 1;
  }
}

RankEvents Timeline::recorded(int rank) const {
  RankEvents own{.rank = rank, .host = trace::host_name(), .events = {}};
  if (begun_.ticks == 0) return own;
  const TickClock clock(begun_, ended_);
  const Window window{begun_.ticks, ended_.ticks};
  std::vector<trace::KeptCall> calls;
  for (const auto& [number, call] : calls_) calls.push_back(call);
  own.lost_spans = log_.lost();
  if (board_) {
    const uint64_t last = calls_.empty() ? first_call_ : calls_.rbegin()->first + 1;
    own.lost_calls = last - first_call_ - calls_.size();
  }
  calls.insert(calls.end(), remote_.begin(), remote_.end());
  own.events = events_of(log_.spans(), clock);
  const auto add = [&](std::vector<Event> more) {
    std::move(more.begin(), more.end(), std::back_inserter(own.events));
  };
  add(events_of(calls, window, clock));
  if (device_) add(device_->events(clock));
  return own;
}

void Timeline::write(Communicator& comm, const std::filesystem::path& path,
                     const std::string& steps) {
  stop();
  RankEvents own = recorded(comm.rank());
  const ClockOffset ahead = clock_of_rank(comm);
  own.ahead_ns = ahead.ns;
  own.ahead_error_ns = ahead.error_ns;
  const bool has = begun_.ticks != 0;
  const int64_t base = least_of_ranks(comm, has ? begun_.ns - ahead.ns : INT64_MAX);
  if (base == INT64_MAX)
    throw InvalidArgument("Timeline::write(): no rank has started the timeline; call start()");
  const std::string file = gather_file(comm, own, format_events(own, base), steps);
  std::string error;
  if (comm.rank() == 0) {
    try {
      write_file_aside(path, file);
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  }
  error = broadcast_object(comm, error, 0).get<std::string>();
  begun_ = {};
  calls_.clear();
  remote_.clear();
  device_.reset();
  if (!error.empty()) throw Error("Timeline::write(): " + error);
}

}  // namespace lockstep::inline v0
