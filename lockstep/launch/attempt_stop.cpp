// The part of Attempt that forwards signals and ends ranks.
#include <signal.h>

#include <chrono>
#include <set>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/process_state.h"
#include "lockstep/launch/attempt.h"
#include "lockstep/launch/failure_report.h"

namespace lockstep::inline v0::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kGroupPause = std::chrono::milliseconds(2);
constexpr auto kKilledGroupTimeout = std::chrono::seconds(2);
// The time in which the first agent answers: it waits for one second, and a heartbeat more where
// the question is lost.
constexpr auto kLeaveAnswer = std::chrono::seconds(3);

}  // namespace

// A host whose place another one may take asks first: ranks that are told to stop would make those
// of the other hosts stop, too.
bool Attempt::asks_to_leave(int signal) {
  if (signal != SIGTERM || stop_signal_ || supervisor_.done() || supervisor_.stopping() ||
      !job_.peers.may_give_place())
    return false;
  stop_signal_ = signal;
  supervisor_.hear_signal();
  leaves_by_ = Clock::now() + kLeaveAnswer;
  AgentMessage message;
  message.kind = AgentMessage::Kind::kLeave;
  message.text = signal_name(signal);
  job_.peers.tell(message);
  return true;
}

// Without an answer the ranks here stop, as they were asked to. The question is repeated until the
// first agent answers.
void Attempt::look_for_leave() {
  if (!leaves_by_ || Clock::now() < *leaves_by_) return;
  leaves_by_.reset();
  if (!supervisor_.stopping()) obey(orders_of_signal(SIGTERM));
}

void Attempt::leave_for_another_host() {
  if (leaves_ || !stop_signal_) return;
  leaves_by_.reset();
  leaves_ = true;
  const std::string why = signal_name(*stop_signal_) + ": another host takes this one's place";
  context_.err.put(-2, {"[lockstep] " + why + "; the ranks here end\n"}, "");
  write_last_traces(why);
  obey(supervisor_.on_signal(SIGKILL, Clock::now(), /*relayed=*/true));
}

void Attempt::take_signal(int signal) {
  if (asks_to_leave(signal)) return;
  obey(orders_of_signal(signal));
  // Ranks that were already told to stop might be followed by new ones, which a signal that stops
  // the job prevents.
  const bool stops = signal != SIGUSR1 && signal != SIGUSR2;
  if (stops) leaves_by_.reset();
  if (stops && !stop_signal_ && (supervisor_.stop_signal() || !job_.peers.last_word()))
    stop_signal_ = signal;
  AgentMessage message;
  message.kind = AgentMessage::Kind::kSignal;
  message.number = signal == SIGPIPE ? SIGTERM : signal;
  leaves_ = leaves_ || (signal == SIGTERM && job_.peers.may_leave());
  // It waits for another place, and the job does not need it.
  const bool has_spares = options_.nodes && options_.nodes->spare_nodes > 0;
  leaves_ = leaves_ || (stops && has_spares && lapsed_ && supervisor_.done());
  if (leaves_) {
    message.kind = AgentMessage::Kind::kLeave;
    message.text = signal_name(signal);
  }
  job_.peers.tell(message);
}

void Attempt::take_orders() {
  // Messages for the next generation wait for it.
  if (job_.peers.plan()->generation != job_.node.generation) return;
  while (const auto order = job_.peers.next_order()) {
    if (order->leave) {
      leave_for_another_host();
      continue;
    }
    if (order->well) {
      obey(supervisor_.on_stop(Clock::now()));
      continue;
    }
    if (order->signal != 0) {
      obey(orders_of_signal(order->signal, /*relayed=*/true));
      continue;
    }
    if (!order->asked) {
      look_at_ranks();
      write_last_traces("the job failed on another host");
    } else if (stop_signal_) {
      write_last_traces(signal_name(*stop_signal_) + " to lockstep run");
    }
    obey(supervisor_.on_stop(Clock::now(), order->asked));
  }
}

std::vector<SignalOrder> Attempt::orders_of_signal(int signal, bool relayed) {
  const bool stops = signal != SIGUSR1 && signal != SIGUSR2;
  if (!stops) {
    if (traces_.on() && !supervisor_.done()) write_traces(signal_name(signal));
  } else {
    write_last_traces(signal_name(signal) +
                      (relayed ? " from another host, or since it is lost" : " to lockstep run"));
  }
  std::vector<SignalOrder> orders = supervisor_.on_signal(signal, Clock::now(), relayed);
  // A request for traces must not end ranks that do not handle the signal.
  if (!stops && traces_.on()) {
    std::erase_if(orders, [this](const SignalOrder& order) {
      return !trace::survives_signal(
          workers_[static_cast<size_t>(order.local_rank)]->process().pid(), order.signal);
    });
  }
  return orders;
}

void Attempt::write_traces(const std::string& reason) {
  const std::string line =
      traces_.write(board_, ranks_, job_.node.first_rank, job_.node.world_size, reason);
  context_.err.put(-2, {line}, "");
}

// The ranks' calls when the job began to end; later calls say nothing.
void Attempt::write_last_traces(const std::string& reason) {
  if (!traces_.on() || ranks_ == 0 || last_traces_written_) return;
  last_traces_written_ = true;
  write_traces(reason);
}

void Attempt::obey(const std::vector<SignalOrder>& orders) {
  for (const SignalOrder& order : orders) {
    Subprocess& process = workers_[static_cast<size_t>(order.local_rank)]->process();
    if (order.group) {
      process.signal_group(order.signal);
      // A stopped rank could not obey.
      const RankSight& sight = sights_[static_cast<size_t>(order.local_rank)];
      if (!sight.stopped_by.empty()) process.signal_group(SIGCONT);
    } else {
      process.signal(order.signal);
    }
  }
}

void Attempt::hold_ranks() {
  if (sentinel_.hold_until(job_.peers.given_up_at()) || lapsed_) return;
  lapsed_ = true;
  if (supervisor_.done()) return;
  AgentMessage failed;
  failed.kind = AgentMessage::Kind::kFailed;
  failed.stood_still = true;
  failed.exit_code = 1;
  failed.text = agent_stood_still_text(options_.nodes->silence);
  context_.err.put(-2, {"[lockstep] " + failed.text + "\n"}, "");
  obey(supervisor_.on_stop(Clock::now()));
  job_.peers.tell(failed);
}

bool Attempt::any_group_alive() {
  bool alive = false;
  std::set<pid_t> ranks;
  for (const auto* workers : {&workers_, &former_}) {
    for (const auto& worker : *workers) {
      // This process reaps its descendants (agent.cpp), so orphans of the group become its
      // children: ask for every group.
      if (worker->process().group_alive()) alive = true;
      ranks.insert(worker->process().pid());
    }
  }
  return strays_.look(ranks) || alive;
}

void Attempt::signal_all(int signal) {
  for (const auto* workers : {&workers_, &former_}) {
    for (const auto& worker : *workers) {
      if (worker->process().group_alive()) worker->process().signal_group(signal);
    }
  }
  strays_.signal(signal);
}

void Attempt::end_groups() {
  end_living_groups();
  // Their PIDs may be reused.
  for (int rank = 0; rank < ranks_; ++rank) sentinel_.forget(rank);
}

void Attempt::end_living_groups() {
  if (!any_group_alive()) return;
  bool killed = supervisor_.killing();
  signal_all(killed ? SIGKILL : SIGTERM);
  // Their children may be saving data.
  Deadline deadline = Deadline::after(killed                      ? kKilledGroupTimeout
                                      : supervisor_.stop_signal() ? options_.stop_grace
                                                                  : options_.grace);
  const int signals_before = signals_;
  while (any_group_alive()) {
    wait_for_events(Clock::now() + kGroupPause);
    const bool hurry = signals_ > signals_before;
    if (!killed && (hurry || deadline.expired())) {
      signal_all(SIGKILL);
      killed = true;
      deadline = Deadline::after(kKilledGroupTimeout);
    } else if (killed && deadline.expired()) {
      context_.err.put(-2,
                       {"[lockstep] a process that a rank started does not die of SIGKILL; it is "
                        "left behind\n"},
                       "");
      return;
    }
  }
}

}  // namespace lockstep::inline v0::launch
