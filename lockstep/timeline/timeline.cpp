#include "lockstep/timeline/timeline.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lockstep/comm/first_error.h"
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
  return {{"rank", rank.rank},        {"host", rank.host},
          {"ahead", rank.ahead_ns},   {"error", rank.ahead_error_ns},
          {"spans", rank.lost_spans}, {"operators", rank.lost_operators},
          {"calls", rank.lost_calls}, {"bytes", bytes}};
}

RankEvents rank_of(const nlohmann::json& json) {
  RankEvents rank;
  json.at("rank").get_to(rank.rank);
  json.at("host").get_to(rank.host);
  json.at("ahead").get_to(rank.ahead_ns);
  json.at("error").get_to(rank.ahead_error_ns);
  json.at("spans").get_to(rank.lost_spans);
  json.at("operators").get_to(rank.lost_operators);
  json.at("calls").get_to(rank.lost_calls);
  return rank;
}

// The least over all ranks. Collective.
int64_t least_of_ranks(Communicator& comm, int64_t own) {
  const at::Tensor least = at::full({1}, own, at::kLong);
  comm.all_reduce(least, ReduceOp::kMin);
  return least.item<int64_t>();
}

// Throws TimelineError on all ranks if one of them has an error to tell. Collective.
void agree_on(Communicator& comm, const std::string& error) {
  const std::string first = first_error(comm, error);
  if (!first.empty()) throw TimelineError("Timeline::write(): " + first);
}

// Returns the error of `work`; "": it had none.
template <typename Work>
std::string error_of(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// The file of the texts of all ranks, which follow each other, and of what they say of themselves.
std::string file_of(const std::vector<nlohmann::json>& told, const at::Tensor& texts,
                    const std::string& steps) {
  std::vector<std::string> events;
  std::vector<RankEvents> ranks;
  const char* next = reinterpret_cast<const char*>(texts.const_data_ptr<uint8_t>());
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

Timeline::Timeline(const TimelineOptions& options)
    : options_(options),
      log_(std::make_shared<SpanLog>(options.capacity,
                                     options.operators ? options.operator_capacity : 0)) {}

Timeline::~Timeline() {
  stop();
}

void Timeline::start(const Communicator& comm) {
  stop();
  forget();
  std::tie(board_, place_) = comm.call_board();
  if (!comm.device().is_cpu()) {
    device_ = std::make_shared<DeviceSpans>(comm.device());
    device_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  if (board_) {
    board_->watch_ends(true);
    first_call_ = next_call_ = seen_calls_ = board_->calls(place_);
  }
  begun_ = read_clocks();
  try {
    log_->start();
    if (options_.operators) operators_ = std::make_unique<OperatorSpans>(log_);
  } catch (...) {
    log_->stop();
    if (board_) board_->watch_ends(false);
    forget();
    throw;
  }
}

void Timeline::stop() noexcept {
  if (!on()) return;
  operators_.reset();
  log_->stop();
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

void Timeline::forget() noexcept {
  begun_ = {};
  calls_.clear();
  remote_.clear();
  device_thread_.store({}, std::memory_order_relaxed);
  device_.reset();
}

void Timeline::collect() {
  if (on() && board_) take_calls();
}

void Timeline::take_calls() {
  seen_calls_ = board_->calls(place_);
  // What was pending at the last reading and is kept no more has an end that is not known.
  constexpr uint64_t kKept = trace::CallBoard::kRecords;
  const uint64_t oldest = seen_calls_ > kKept ? seen_calls_ - kKept : 0;
  for (auto it = calls_.lower_bound(next_call_); it != calls_.end() && it->first < oldest;)
    it = it->second.record.ended == 0 ? calls_.erase(it) : std::next(it);
  bool pending = false;
  for (const trace::KeptCall& call : board_->calls_from(place_, next_call_)) {
    const bool known = calls_.count(call.number) != 0;
    if (known || calls_.size() < options_.capacity) calls_[call.number] = call;
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
  own.lost_spans = log_->lost(SpanKind::kMarked) + (device_ ? device_->lost() : 0);
  own.lost_operators = log_->lost(SpanKind::kOperator);
  if (board_) own.lost_calls = seen_calls_ - first_call_ - calls_.size();
  calls.insert(calls.end(), remote_.begin(), remote_.end());
  own.events = events_of(log_->spans(), clock);
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
  const ClockOffset ahead = clock_of_rank(comm);
  const bool has = begun_.ticks != 0;
  const int64_t base = least_of_ranks(comm, has ? begun_.ns - ahead.ns : INT64_MAX);
  if (base == INT64_MAX)
    throw InvalidArgument("Timeline::write(): no rank has started the timeline; call start()");
  nlohmann::json told;
  at::Tensor text;
  const std::string failed = error_of([&] {
    RankEvents own = recorded(comm.rank());
    own.ahead_ns = ahead.ns;
    own.ahead_error_ns = ahead.error_ns;
    const std::string events = format_events(own, base);
    text = at::empty({static_cast<int64_t>(events.size())}, at::kByte);
    std::memcpy(text.mutable_data_ptr(), events.data(), events.size());
    told = json_of(own, events.size());
  });
  forget();
  agree_on(comm, failed);
  const std::vector<nlohmann::json> all = gather_object(comm, told, 0);
  const at::Tensor texts = comm.gatherv(text, 0);
  const std::string unwritten = error_of([&] {
    if (comm.rank() == 0) write_file_aside(path, file_of(all, texts, steps));
  });
  agree_on(comm, unwritten);
}

}  // namespace lockstep::inline v0
