#include "lockstep/timeline/timeline.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "lockstep/comm/first_error.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/timeline/call_collector.h"
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

nlohmann::json json_of(const RankEvents& rank) {
  return {{"rank", rank.rank},        {"host", rank.host},
          {"ahead", rank.ahead_ns},   {"error", rank.ahead_error_ns},
          {"spans", rank.lost_spans}, {"operators", rank.lost_operators},
          {"calls", rank.lost_calls}};
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

at::Tensor tensor_of(const std::string& text) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(tensor.mutable_data_ptr(), text.data(), text.size());
  return tensor;
}

std::string_view text_of(const at::Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.const_data_ptr<uint8_t>()),
          static_cast<size_t>(tensor.numel())};
}

// The file that rank 0 writes. After an error it writes nothing more, and keeps it for all ranks.
class WrittenFile {
 public:
  explicit WrittenFile(const std::filesystem::path& path) {
    error_ = error_of([&] {
      file_ = std::make_unique<AsideFile>(path);
      file_->write(kFileBegin);
    });
  }
  void add(std::string_view events) {
    if (!error_.empty() || events.empty()) return;
    error_ = error_of([&] {
      if (!std::exchange(first_, false)) file_->write(kFileBetween);
      file_->write(events);
    });
  }
  void finish(const std::vector<nlohmann::json>& told, const std::string& steps) {
    if (!error_.empty()) return;
    error_ = error_of([&] {
      std::vector<RankEvents> ranks;
      for (const nlohmann::json& json : told) ranks.push_back(rank_of(json));
      file_->write(file_end(ranks, steps));
      file_->commit();
    });
  }
  const std::string& error() const { return error_; }

 private:
  std::unique_ptr<AsideFile> file_;
  bool first_ = true;  // no rank's events are in it
  std::string error_;
};

}  // namespace

void TimelineSpan::begin_range(std::string_view name, int64_t number) noexcept {
  try {
    std::string text(name);
    if (number >= 0) text += " " + std::to_string(number);
    range_.begin(text.c_str());
  } catch (const std::exception&) {  // out of memory: it has no range
  }
}

void TimelineSpan::begin_on_device(std::string_view name, int64_t number) noexcept {
  place_ = device_->begin(name, number);
}

void TimelineSpan::end_on_device() noexcept {
  device_->end(place_);
}

Timeline::Timeline(const TimelineOptions& options)
    : options_(options),
      log_(std::make_shared<SpanLog>(options.capacity,
                                     options.operators ? options.operator_capacity : 0)) {
  check(options);
}

Timeline::~Timeline() {
  stop();
  if (marked_board_) marked_board_->mark_calls(false);
}

void Timeline::check(const TimelineOptions& options) {
  if (options.nvtx) device::require_nvtx("nvtx");
}

void Timeline::mark_calls(const Communicator& comm) {
  if (!options_.nvtx) return;
  const std::shared_ptr<trace::CallBoard> board = comm.call_board().first;
  if (board == marked_board_) return;
  if (board) board->mark_calls(true);
  if (marked_board_) marked_board_->mark_calls(false);
  marked_board_ = board;
}

void Timeline::start(const Communicator& comm) {
  stop();
  forget();
  mark_calls(comm);
  std::tie(board_, place_) = comm.call_board();
  if (!comm.device().is_cpu()) {
    device_ = std::make_shared<DeviceSpans>(comm.device());
    device_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  if (board_) board_->watch_ends(true);
  try {
    if (board_) calls_ = std::make_unique<CallCollector>(board_, place_, options_.capacity);
    begun_ = read_clocks();
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
    calls_->finish();
    for (const trace::CallRecord& call : board_->records(place_))
      if (trace::is_remote(call)) remote_.push_back({.number = 0, .record = call});
  } catch (const std::exception&) {  // out of memory: the calls count as lost
  }
}

void Timeline::forget() noexcept {
  begun_ = {};
  calls_.reset();
  remote_.clear();
  device_thread_.store({}, std::memory_order_relaxed);
  device_.reset();
}

void Timeline::collect() {
  if (on() && calls_) calls_->collect();
}

RankEvents Timeline::recorded(int rank) const {
  RankEvents own{.rank = rank, .host = trace::host_name(), .events = {}};
  if (begun_.ticks == 0) return own;
  const TickClock clock(begun_, ended_);
  const Window window{begun_.ticks, ended_.ticks};
  std::vector<trace::KeptCall> calls;
  if (calls_) {
    calls = calls_->calls();
    own.lost_calls = calls_->lost();
  }
  own.lost_spans = log_->lost(SpanKind::kMarked) + (device_ ? device_->lost() : 0);
  own.lost_operators = log_->lost(SpanKind::kOperator);
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
  const at::Tensor none = at::empty({0}, at::kByte);
  at::Tensor text = none;
  const std::string failed = error_of([&] {
    RankEvents own = recorded(comm.rank());
    own.ahead_ns = ahead.ns;
    own.ahead_error_ns = ahead.error_ns;
    text = tensor_of(format_events(own, base));
    own.events.clear();
    told = json_of(own);
  });
  forget();
  agree_on(comm, failed);
  const std::vector<nlohmann::json> all = gather_object(comm, told, 0);
  std::optional<WrittenFile> file;
  if (comm.rank() == 0) {
    file.emplace(path);
    file->add(text_of(std::exchange(text, none)));
  }
  // Rank 0 takes what the others have even where it cannot write: they give it without asking.
  for (int rank = 1; rank < comm.size(); ++rank) {
    const at::Tensor part = comm.gatherv(comm.rank() == rank ? text : none, 0);
    if (file) file->add(text_of(part));
  }
  if (file) file->finish(all, steps);
  agree_on(comm, file ? file->error() : "");
}

}  // namespace lockstep::inline v0
