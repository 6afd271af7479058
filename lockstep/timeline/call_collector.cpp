#include "lockstep/timeline/call_collector.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

namespace lockstep::inline v0::timeline {
namespace {

// A record is written in some nanoseconds, unless its thread is interrupted.
constexpr int kLastLooks = 100;
constexpr std::chrono::microseconds kBetweenLooks{50};

// The oldest of `calls` calls that a board still keeps.
uint64_t oldest_of(uint64_t calls) {
  return calls > trace::CallBoard::kRecords ? calls - trace::CallBoard::kRecords : 0;
}

}  // namespace

CallCollector::CallCollector(std::shared_ptr<const trace::CallBoard> board, int place,
                             size_t capacity)
    : board_(std::move(board)), place_(place), capacity_(capacity) {
  seen_ = first_ = board_->calls(place_);
  const std::vector<trace::KeptCall> kept = board_->calls_from(place_, 0);
  uint64_t expected = kept.empty() ? first_ : kept.front().number;
  for (const trace::KeptCall& call : kept) {
    // A call that is just being recorded counts, and with it those that follow it.
    if (call.number != expected || call.number >= seen_) break;
    ++expected;
    if (call.under_way() && calls_.size() < capacity_) calls_[call.number] = call;
  }
  first_ = std::min(first_, expected);
  earlier_ = calls_.size();
  next_ = calls_.empty() ? first_ : calls_.begin()->first;
}

void CallCollector::collect() {
  seen_ = board_->calls(place_);
  read();
}

void CallCollector::finish() {
  seen_ = board_->calls(place_);
  for (int look = 0; !read() && look < kLastLooks; ++look)
    std::this_thread::sleep_for(kBetweenLooks);
}

std::vector<trace::KeptCall> CallCollector::calls() const {
  std::vector<trace::KeptCall> all;
  all.reserve(calls_.size());
  for (const auto& [number, call] : calls_) all.push_back(call);
  return all;
}

uint64_t CallCollector::lost() const {
  return seen_ - first_ + earlier_ - calls_.size();
}

// Reads the calls up to seen_. Returns whether it could read all that are still kept.
bool CallCollector::read() {
  const uint64_t oldest = oldest_of(board_->calls(place_));
  // What was under way at the last reading and is kept no more has an end that is not known.
  for (auto it = calls_.lower_bound(next_); it != calls_.end() && it->first < oldest;)
    it = it->second.under_way() ? calls_.erase(it) : std::next(it);
  next_ = std::min(std::max(next_, oldest), seen_);
  uint64_t expected = next_;
  bool all = true, ended = true;
  for (const trace::KeptCall& call : board_->calls_from(place_, next_)) {
    if (call.number >= seen_) break;
    all = all && call.number == expected;
    expected = call.number + 1;
    take(call);
    ended = ended && !call.under_way();
    if (all && ended) next_ = expected;
  }
  return all && expected == seen_;
}

void CallCollector::take(const trace::KeptCall& call) {
  const auto known = calls_.find(call.number);
  if (known != calls_.end())
    known->second = call;
  else if (call.number >= first_ && calls_.size() < capacity_)
    calls_[call.number] = call;
}

}  // namespace lockstep::inline v0::timeline
