#include "lockstep/comm/internal/deadlock_detector.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace {

// For all answers of the store during one look.
constexpr auto kStoreAnswers = std::chrono::milliseconds(100);
// The time between two looks: after a cycle was seen, and at most.
constexpr auto kSoon = std::chrono::milliseconds(1000), kSeldom = std::chrono::milliseconds(8000);
constexpr auto kLinger = kSoon + std::chrono::milliseconds(500);
constexpr double kFirstCallSeconds = 30;
// In a job of thousands of ranks that all wait for one, each looks at this many.
constexpr size_t kMostRead = 64;

std::string key_of(int rank) {
  return "deadlocks/" + std::to_string(rank);
}

bool same_call(const WaitState& a, const WaitState& b) {
  return a.group == b.group && a.number == b.number;
}

// Whether `other` has not made the call that `waiting` waits for.
bool missing(const WaitState& waiting, const WaitState& other) {
  const auto calls = other.called.find(waiting.group);
  if (calls == other.called.end() || calls->second >= waiting.number) return false;
  return calls->second > 0 ||
         (waiting.seconds > kFirstCallSeconds && other.seconds > kFirstCallSeconds);
}

// Depth first, from `at` back to `start`. `different`: whether a rank on the path is in a call
// other than the awaited one.
bool search(int start, int at, bool different, const std::map<int, WaitState>& states,
            std::set<std::pair<int, bool>>& seen, std::vector<int>& path) {
  if (!seen.insert({at, different}).second) return false;
  path.push_back(at);
  const WaitState& here = states.at(at);
  for (const int next : here.awaited) {
    const auto found = states.find(next);
    if (found == states.end()) continue;
    const bool lacks = missing(here, found->second);
    // A rank in the same call waits for other ranks in turn; nothing else is known about it.
    if (!lacks && !same_call(here, found->second)) continue;
    if (next == start ? different || lacks
                      : search(start, next, different || lacks, states, seen, path))
      return true;
  }
  path.pop_back();
  return false;
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WaitState, wait, looks, seconds, group, number, awaited, called,
                                   text, verdict, judged)

std::string encode(const WaitState& state) {
  return nlohmann::json(state).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<WaitState> parse_wait_state(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<WaitState>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::vector<int> find_cycle(int rank, const std::map<int, WaitState>& states) {
  std::vector<int> path;
  std::set<std::pair<int, bool>> seen;
  if (states.contains(rank)) search(rank, rank, false, states, seen, path);
  return path;
}

DeadlockDetector::DeadlockDetector(std::shared_ptr<Store> store, int rank)
    : store_(std::move(store)), rank_(rank) {}

std::string DeadlockDetector::look(WaitState own, bool moved) noexcept {
  if (!store_) return "";
  try {
    const std::string place = own.group + "#" + std::to_string(own.number);
    if (moved || place != last_ || waits_ == 0) {
      ++waits_;
      before_.clear();
      pause_ = kSoon / 2;
    }
    pause_ = std::min(2 * pause_, kSeldom);
    last_ = place;
    own.wait = waits_;
    own.looks = ++looks_;
    return judge(own);
  } catch (const Timeout&) {
    before_.clear();  // on a busy machine the unseen reports may have moved on
    pause_ = kSeldom;
    return "";
  } catch (const std::exception&) {
    store_ = nullptr;  // the waiting rank has other ways to learn of errors
    return "";
  }
}

std::string DeadlockDetector::judge(const WaitState& own) {
  const Deadline answers = Deadline::after(kStoreAnswers);
  store_->offer(key_of(rank_), encode(own), answers);
  std::map<int, WaitState> now{{rank_, own}};
  std::vector<int> open = own.awaited;
  std::set<int> asked{rank_};
  while (!open.empty() && asked.size() < kMostRead) {
    const int rank = open.back();
    open.pop_back();
    if (!asked.insert(rank).second) continue;
    auto state = read(rank, answers);
    if (!state) continue;
    open.insert(open.end(), state->awaited.begin(), state->awaited.end());
    now.emplace(rank, std::move(*state));
  }
  std::map<int, WaitState> still;
  for (const auto& [rank, state] : now) {
    // Another rank found it, which may have ended since.
    const auto judged = state.judged.find(rank_);
    if (judged != state.judged.end() && judged->second == own.wait) return publish(own, state);
    const auto before = before_.find(rank);
    if (rank == rank_ || (before != before_.end() && before->second.wait == state.wait &&
                          before->second.looks < state.looks))
      still.emplace(rank, state);
  }
  if (!find_cycle(rank_, now).empty()) pause_ = kSoon;
  const bool again = !before_.empty();
  before_ = std::move(now);
  std::vector<int> circle = again ? find_cycle(rank_, still) : std::vector<int>();
  if (circle.empty()) return "";
  std::sort(circle.begin(), circle.end());
  WaitState last = own;
  std::vector<std::string> places;
  for (const int rank : circle) {
    const WaitState& state = still.at(rank);
    places.push_back("rank " + std::to_string(rank) + " is in " + state.text);
    last.judged[rank] = state.wait;
  }
  last.verdict = "ranks wait for each other in different groups: " + joined(places, "; ") +
                 "; every rank must call the operations of its groups in the same order";
  return publish(own, last);
}

// Publishes the verdict and waits until the others have read it: the rank that throws first may
// exit next, and the others would only see that.
std::string DeadlockDetector::publish(const WaitState& own, const WaitState& judge) {
  WaitState last = own;
  last.verdict = judge.verdict;
  last.judged = judge.judged;
  store_->offer(key_of(rank_), encode(last), Deadline::after(kStoreAnswers));
  const Deadline linger = Deadline::after(kLinger);
  for (const auto& [rank, wait] : last.judged) {
    while (rank != rank_ && !linger.expired()) {
      const auto state = read(rank, Deadline::after(kStoreAnswers));
      if (!state || state->wait != wait || !state->verdict.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  return last.verdict;
}

std::optional<WaitState> DeadlockDetector::read(int rank, Deadline deadline) {
  const auto text = store_->peek(key_of(rank), deadline);
  return text ? parse_wait_state(*text) : std::nullopt;
}

}  // namespace lockstep::inline v0
