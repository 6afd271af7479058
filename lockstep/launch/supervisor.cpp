#include "lockstep/launch/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <tuple>

#include "lockstep/core/check.h"

namespace lockstep::launch {

RankExit choose_first_failure(std::span<const RankExit> exits) {
  const auto weight = [](const RankExit& exit) {
    const int kind = exit.status.ok()                ? 4
                     : exit.gave_up                  ? 3
                     : exit.status.signal == 0       ? 2
                     : exit.status.signal == SIGABRT ? 1
                                                     : 0;
    return std::tuple(kind, exit.local_rank);
  };
  const auto first =
      std::min_element(exits.begin(), exits.end(),
                       [&](const RankExit& a, const RankExit& b) { return weight(a) < weight(b); });
  LOCKSTEP_CHECK(first != exits.end() && !first->status.ok(), "there is a failure to choose");
  return *first;
}

Supervisor::Supervisor(int ranks, std::chrono::milliseconds grace)
    : grace_(grace), alive_(static_cast<size_t>(ranks), true), running_(ranks) {}

std::vector<SignalOrder> Supervisor::to_running(int signal, bool group) const {
  std::vector<SignalOrder> orders;
  for (size_t rank = 0; rank < alive_.size(); ++rank) {
    if (alive_[rank]) orders.push_back({static_cast<int>(rank), signal, group});
  }
  return orders;
}

std::vector<SignalOrder> Supervisor::kill_all() {
  phase_ = Phase::kKilling;
  return to_running(SIGKILL, true);
}

std::vector<SignalOrder> Supervisor::on_exits(std::span<const RankExit> exits, Time now) {
  bool failed = false;
  for (const RankExit& exit : exits) {
    alive_[static_cast<size_t>(exit.local_rank)] = false;
    --running_;
    failed = failed || !exit.status.ok();
  }
  if (!failed || phase_ != Phase::kRunning) return {};
  failure_ = choose_first_failure(exits);
  return on_stop(now);
}

std::vector<SignalOrder> Supervisor::on_stop(Time now) {
  if (phase_ != Phase::kRunning) return {};
  phase_ = Phase::kStopping;
  kill_at_ = now + grace_;
  return to_running(SIGTERM, true);
}

std::vector<SignalOrder> Supervisor::on_signal(int signal, Time now) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return to_running(signal, false);
  if (phase_ != Phase::kRunning) return kill_all();
  stop_signal_ = signal;
  phase_ = Phase::kStopping;
  kill_at_ = now + grace_;
  // Ranks cannot be asked to stop by a lost reader of the agent's output.
  return to_running(signal == SIGPIPE ? SIGTERM : signal, true);
}

std::vector<SignalOrder> Supervisor::on_time(Time now) {
  if (phase_ != Phase::kStopping || now < kill_at_) return {};
  return kill_all();
}

std::optional<Supervisor::Time> Supervisor::next_time() const {
  if (phase_ != Phase::kStopping) return std::nullopt;
  return kill_at_;
}

}  // namespace lockstep::launch
