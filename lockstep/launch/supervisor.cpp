#include "lockstep/launch/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep::inline v0::launch {

RankExit choose_first_failure(std::span<const RankExit> exits) {
  const auto weight = [](const RankExit& exit) {
    const int kind = exit.well()                     ? 4
                     : exit.gave_up                  ? 3
                     : exit.status.signal == 0       ? 2
                     : exit.status.signal == SIGABRT ? 1
                                                     : 0;
    return std::tuple(kind, exit.local_rank);
  };
  const auto first =
      std::min_element(exits.begin(), exits.end(),
                       [&](const RankExit& a, const RankExit& b) { return weight(a) < weight(b); });
  LOCKSTEP_CHECK(first != exits.end() && !first->well(), "there is a failure to choose");
  return *first;
}

std::chrono::milliseconds restart_pause(int n) {
  constexpr std::chrono::milliseconds kFirst(100), kMost(5000);
  std::chrono::milliseconds pause = kFirst;
  for (int i = 1; i < n && pause < kMost; ++i) pause *= 2;
  return std::min(pause, kMost);
}

Supervisor::Supervisor(int ranks, Grace grace)
    : Supervisor(std::vector<RankPolicy>(static_cast<size_t>(ranks)), grace) {}

Supervisor::Supervisor(std::vector<RankPolicy> ranks, Grace grace, bool alone, int replacements,
                       bool shrinks)
    : ranks_(std::move(ranks)),
      grace_(grace),
      alone_(alone),
      alive_(ranks_.size(), true),
      restarts_(ranks_.size(), 0),
      restart_at_(ranks_.size()),
      replacements_(replacements),
      shrinks_(shrinks),
      is_left_(ranks_.size(), false),
      started_at_(ranks_.size()),
      quick_ends_(ranks_.size(), 0),
      running_(static_cast<int>(ranks_.size())) {
  for (const RankPolicy& rank : ranks_) {
    has_services_ = has_services_ || rank.service;
    if (!rank.service) ++to_be_served_;
  }
}

std::vector<SignalOrder> Supervisor::to_running(int signal, bool group) const {
  std::vector<SignalOrder> orders;
  for (size_t rank = 0; rank < alive_.size(); ++rank) {
    if (alive_[rank]) orders.push_back({static_cast<int>(rank), signal, group});
  }
  return orders;
}

std::vector<SignalOrder> Supervisor::kill_all() {
  give_up_restarts();
  phase_ = Phase::kKilling;
  return to_running(SIGKILL, true);
}

// Counts the restart. A wrong option or input fails in the same way each time.
bool Supervisor::comes_back(const RankExit& exit) {
  const auto rank = static_cast<size_t>(exit.local_rank);
  const bool hopeless = exit.status.signal == 0 && exit.status.exit_code == 2;
  const bool may = restarts_are_left(exit.local_rank) || (exit.excused && !any_ended_well_);
  if (exit.well() || hopeless || !may) return false;
  if (restarts_[rank] >= ranks_[rank].restarts && !exit.excused) ++replaced_;
  return true;
}

// Ranks must be left, and none may have succeeded before; if the last ones fail then, the work is
// lost. Those that are found in the same look to have succeeded went on without a rank that failed.
// One that had done all its steps as well has a failure of its own.
bool Supervisor::goes_on_without(std::span<const RankExit> failures,
                                 bool one_had_ended_well) const {
  const auto bad_usage = [](const RankExit& exit) {
    return exit.status.signal == 0 && exit.status.exit_code == 2;
  };
  const auto past_end = [](const RankExit& exit) { return exit.past_end; };
  if (!shrinks_ || one_had_ended_well) return false;
  if (std::any_of(failures.begin(), failures.end(), bad_usage)) return false;
  if (std::any_of(failures.begin(), failures.end(), past_end)) return false;
  bool any = any_ended_well_;
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    any = any || (alive_[rank] && !ranks_[rank].service);
  return any;
}

std::chrono::milliseconds Supervisor::pause_before_next(size_t rank, Time now) {
  if (replacements_ == 0) return restart_pause(restarts_[rank]);
  quick_ends_[rank] = now - started_at_[rank] < kQuickEnd ? quick_ends_[rank] + 1 : 0;
  return quick_ends_[rank] > 0 ? restart_pause(quick_ends_[rank]) : std::chrono::milliseconds(0);
}

std::ptrdiff_t Supervisor::waiting() const {
  return std::count_if(restart_at_.begin(), restart_at_.end(),
                       [](const auto& at) { return at.has_value(); });
}

void Supervisor::begin_to_stop(Time now, bool asked) {
  phase_ = Phase::kStopping;
  asked_ = asked;
  kill_at_ = now + (asked ? grace_.when_asked : grace_.after_failure);
  give_up_restarts();
}

void Supervisor::give_up_restarts() {
  any_ended_badly_ = any_ended_badly_ || waiting() > 0;
  std::fill(restart_at_.begin(), restart_at_.end(), std::nullopt);
}

std::vector<SignalOrder> Supervisor::on_exits(std::span<const RankExit> exits, Time now) {
  std::vector<RankExit> failures;
  const bool one_had_ended_well = any_ended_well_;
  for (const RankExit& exit : exits) {
    const bool service = ranks_[static_cast<size_t>(exit.local_rank)].service;
    any_ended_well_ = any_ended_well_ || (exit.well() && !service);
  }
  std::vector<RankExit> back;
  for (const RankExit& exit : exits) {
    const auto rank = static_cast<size_t>(exit.local_rank);
    alive_[rank] = false;
    --running_;
    if ((exit.well() || is_left_[rank]) && !ranks_[rank].service) --to_be_served_;
    if (!exit.well() && !is_left_[rank]) (comes_back(exit) ? back : failures).push_back(exit);
  }
  const bool stopping = phase_ != Phase::kRunning;
  const bool without = !stopping && goes_on_without(failures, one_had_ended_well);
  for (const RankExit& exit : failures) {
    if (ranks_[static_cast<size_t>(exit.local_rank)].service) continue;
    if (without)
      --to_be_served_;
    else
      any_ended_badly_ = true;
  }
  if (stopping) {
    for (const RankExit& exit : back)
      any_ended_badly_ = any_ended_badly_ || !ranks_[static_cast<size_t>(exit.local_rank)].service;
    return {};
  }
  if (without) {
    left_behind_ += static_cast<int>(failures.size());
    left_.insert(left_.end(), failures.begin(), failures.end());
  }
  if (alone_ && served()) return on_stop(now);
  if (!failures.empty() && !without) {
    failure_ = choose_first_failure(failures);
    return on_stop(now);
  }
  for (const RankExit& exit : back) {
    const auto rank = static_cast<size_t>(exit.local_rank);
    ++restarts_[rank];
    restart_at_[rank] = now + pause_before_next(rank, now);
  }
  return {};
}

std::vector<SignalOrder> Supervisor::on_stop(Time now, bool asked) {
  if (phase_ != Phase::kRunning) return {};
  begin_to_stop(now, asked);
  return to_running(SIGTERM, true);
}

std::vector<SignalOrder> Supervisor::on_signal(int signal, Time now, bool relayed) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return to_running(signal, false);
  if (relayed && signal == SIGKILL) return kill_all();
  const bool again = !relayed && std::exchange(heard_signal_, true);
  if (phase_ != Phase::kRunning) {
    const bool same_wish = asked_ && signal == SIGTERM && !again;
    return relayed || same_wish ? std::vector<SignalOrder>() : kill_all();
  }
  stop_signal_ = signal;
  begin_to_stop(now, signal == SIGTERM);
  // SIGPIPE, for a lost reader of the agent's output, would not ask ranks to stop.
  return to_running(signal == SIGPIPE ? SIGTERM : signal, true);
}

std::vector<SignalOrder> Supervisor::on_time(Time now) {
  if (phase_ == Phase::kRunning && leave_behind_by_ && now >= *leave_behind_by_) {
    leave_behind_by_.reset();
    std::vector<SignalOrder> orders = to_running(SIGKILL, true);
    std::erase_if(orders, [this](const SignalOrder& order) {
      return !is_left_[static_cast<size_t>(order.local_rank)];
    });
    return orders;
  }
  if (phase_ != Phase::kStopping || now < kill_at_) return {};
  return kill_all();
}

std::vector<SignalOrder> Supervisor::leave_behind(std::span<const int> ranks, Time now) {
  if (!any_ended_well_) {
    any_ended_badly_ = true;
    failure_ = choose_first_failure(left_);
    return on_stop(now);
  }
  std::vector<SignalOrder> orders;
  for (const int rank : ranks) {
    is_left_[static_cast<size_t>(rank)] = true;
    orders.push_back({rank, SIGTERM, true});
  }
  left_behind_ += static_cast<int>(ranks.size());
  leave_behind_by_ = now + grace_.after_failure;
  return orders;
}

std::vector<int> Supervisor::take_restarts(Time now) {
  std::vector<int> due;
  for (size_t rank = 0; rank < restart_at_.size(); ++rank) {
    if (!restart_at_[rank] || *restart_at_[rank] > now) continue;
    restart_at_[rank].reset();
    started_at_[rank] = now;
    alive_[rank] = true;
    ++running_;
    due.push_back(static_cast<int>(rank));
  }
  return due;
}

std::optional<Supervisor::Time> Supervisor::next_time() const {
  if (phase_ == Phase::kStopping) return kill_at_;
  std::optional<Time> next = leave_behind_by_;
  for (const std::optional<Time>& at : restart_at_) {
    if (at && (!next || *at < *next)) next = at;
  }
  return next;
}

}  // namespace lockstep::inline v0::launch
