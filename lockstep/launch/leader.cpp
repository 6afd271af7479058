#include "lockstep/launch/leader.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/verdict.h"

namespace lockstep::inline v0::launch {
namespace {

using Kind = AgentMessage::Kind;

// A failure that is found within this time of the first may be its cause: a dead peer's end reaches
// other hosts faster than its own agent's report.
constexpr auto kSameMoment = std::chrono::seconds(1);
// In addition to the grace: the time for an agent to end its ranks and report that.
constexpr auto kStopSlack = std::chrono::seconds(10);

// A user who ends a job on several hosts may signal their agents one after another: then no host is
// replaced, and all ranks may save their work.
constexpr auto kOthersToo = std::chrono::seconds(1);

enum Weight { kLostAgent, kKilled, kOther, kWaited };

}  // namespace

void Leader::append(Sends& sends, Sends more) {
  sends.insert(sends.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
}

// What is known of the ranks that an agent had, since it is to have others.
void Leader::forget_ranks(Agent& agent) {
  agent.ready = agent.started = agent.served = agent.ended = false;
  agent.finished = agent.well = agent.past_end = false;
}

Leader::Leader(LeaderOptions options, Time now)
    : options_(std::move(options)),
      join_by_(std::max(now, options_.not_before) + options_.join_timeout),
      next_beat_(now + options_.beat),
      changed_at_(now),
      not_before_(options_.not_before),
      former_size_{options_.former_hosts, options_.former_ranks},
      reason_(options_.reason) {}

std::string Leader::name_of(const Agent& agent) const {
  const auto i = static_cast<size_t>(agent.introduction.number);
  if (agent.introduction.number >= 0 && i < options_.names.size()) return options_.names[i];
  return agent.introduction.host;
}

std::string Leader::ranks_of(const Agent& agent) const {
  const int first = agent.plan.first_rank, last = first + agent.plan.local_ranks - 1;
  if (last < first) return "no ranks";
  if (first == last) return "rank " + std::to_string(first);
  return "ranks " + std::to_string(first) + " to " + std::to_string(last);
}

AgentMessage Leader::about(Kind kind) const {
  AgentMessage message;
  message.kind = kind;
  message.generation = generation_;
  return message;
}

AgentMessage Leader::about(Kind kind, const Agent& agent) {
  AgentMessage message;
  message.kind = kind;
  message.generation = agent.plan.generation;
  return message;
}

Leader::Sends Leader::to_all(const AgentMessage& message, std::optional<Member> but) const {
  Sends sends;
  for (const auto& [member, agent] : agents_) {
    if (agent.lost || member == but) continue;
    sends.push_back({member, message});
    if (agent.member) sends.back().message.generation = agent.plan.generation;
  }
  return sends;
}

// The message that the agent has not answered, otherwise the leader's sign of life.
AgentMessage Leader::word_to(const Agent& agent) const {
  if (phase_ == Phase::kOver) return over_;
  if (phase_ == Phase::kMeeting) return {};
  if (!agent.member && !agent.candidate) {
    AgentMessage wait = about(Kind::kWait);
    wait.text = "the job runs on " + count_of(size_.hosts, "host");
    wait.text += has_spares() ? "; this one is a spare, and takes the place of one that is lost"
                              : ", and may have " + std::to_string(options_.nodes) +
                                    "; this one waits until they begin anew";
    return wait;
  }
  if ((phase_ == Phase::kProposing || agent.candidate) && !agent.ready) {
    AgentMessage plan = about(Kind::kPlan, agent);
    plan.plan = agent.plan;
    if (options_.endpoints > 1) {
      plan.known = known_;
      plan.known.push_back(formation());
    }
    return plan;
  }
  if (!agent.member) return {};
  if (phase_ == Phase::kRunning && !agent.started) return about(Kind::kStart, agent);
  if (phase_ == Phase::kStopping && !agent.ended) return stop_order(agent);
  if (agent.leaving && !agent.gives_up.empty()) return about(Kind::kLeave, agent);
  if (phase_ == Phase::kRunning && services_stopped_ && !agent.ended)
    return about(Kind::kStopServices, agent);
  return {};
}

Leader::Sends Leader::on_message(Member from, const AgentMessage& message,
                                 const std::string& address, Time now) {
  if (message.kind == Kind::kJoin) return join(from, message, address, now);
  const auto it = agents_.find(from);
  if (it == agents_.end() || it->second.lost) return {};
  Agent& agent = it->second;
  agent.heard = now;
  if (phase_ == Phase::kOver) return from == kSelf ? Sends{} : Sends{{from, over_}};
  if (message.kind == Kind::kSignal) return on_signal(from, agent, message.number, now);
  if (message.kind == Kind::kLeave) return on_leave(from, message, now);
  if (message.generation != agent.plan.generation) return {};
  if (agent.candidate && message.kind == Kind::kReady) return take_place(from, now);
  if (!agent.member) return {};
  if (message.kind == Kind::kReady) {
    if (phase_ != Phase::kProposing) return {{from, word_to(agent)}};
    if (agent.ready) return {};  // the agent reports it with every beat
    agent.ready = true;
    --pending_;
    return start_if_all_ready(now);
  }
  if (!runs()) return {};
  agent.started = true;
  agent.past_end = message.past_end;
  switch (message.kind) {
    case Kind::kFailed: {
      if (gives_place_up(agent, message)) return {};
      Cause cause{.time = now, .member = from};
      if (message.failure) {
        blame(cause, *message.failure, name_of(agent));
      } else {
        cause.text = name_of(agent) + ": " + message.text;
        if (message.exit_code != 0) cause.exit_code = message.exit_code;
        cause.host_gone = message.stood_still;  // its ranks are gone; it may have others at once
      }
      return fail(std::move(cause), now);
    }
    case Kind::kServed:
      serve(agent);
      return stop_services_if_all_served();
    case Kind::kWaitInVain:
    case Kind::kStoodStill:
      return to_all(about(message.kind), from);
    case Kind::kEnded:
      return agent.ended ? Sends{} : on_ended(from, message, now);
    default:
      return tend_vacancies(now);
  }
}

void Leader::blame(Cause& cause, const WorkerFailure& failure, const std::string& host) {
  cause.worker = failure;
  cause.worker->host = host;
  cause.exit_code = failure.signal == 0 && failure.exit_code == 2 ? 2 : 1;
  cause.weight = failure.signal != 0 && failure.signal != SIGABRT ? kKilled
                 : failure.gave_up                                ? kWaited
                                                                  : kOther;
}

std::string Leader::text_of(const Cause& cause) {
  return cause.worker ? describe_cause(*cause.worker) : cause.text;
}

Leader::Sends Leader::on_signal(Member from, const Agent& agent, int signal, Time now) {
  AgentMessage message = about(Kind::kSignal);
  message.number = signal;
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    // A member's user signal is for its own ranks, the first agent's signal for all.
    return from == kSelf ? to_all(message, from) : Sends{};
  }
  // A member that has not joined yet, or waits for a new generation, just leaves.
  if (from != kSelf && !agent.member) return {};
  // A second signal to the same agent: the user is in a hurry.
  if (!signalled_.insert(from).second) message.number = SIGKILL;
  Sends sends = runs() ? to_all(message, from) : Sends{};
  const bool first = !final_;
  final_ = true;
  if (!first) return sends;
  Cause cause{.time = now,
              .member = from,
              .text = "the job was stopped by " + signal_name(signal) + " to the agent on " +
                      name_of(agent),
              .asked = signal == SIGTERM};
  if (!runs()) return fail(std::move(cause), now);
  if (phase_ == Phase::kRunning) begin_to_stop(now, cause.asked);
  // Ranks that are being stopped for newcomers have no cause yet.
  if (causes_.empty()) causes_.push_back(std::move(cause));
  append(sends, go_on_if_all_ended(now));
  return sends;
}

Leader::Sends Leader::on_leave(Member from, const AgentMessage& message, Time now) {
  Agent& agent = agents_.at(from);
  const std::string& why = message.text;
  // A question is repeated until it is answered, and no second signal.
  if (agent.leaving || agent.leaves_at || signalled_.contains(from)) return {};
  if (has_spares() && agent.member && runs()) {
    // While all ranks stop, it has what it asks for.
    if (phase_ == Phase::kRunning && message.generation == agent.plan.generation) {
      agent.leaves_at = now + kOthersToo;
      agent.why_leaves = why;
    }
    return {};
  }
  if (!restarts_allowed()) return on_signal(from, agent, SIGTERM, now);
  agent.leaving = true;
  uncount(agent, now);
  if (!agent.member || phase_ == Phase::kMeeting || phase_ == Phase::kProposing)
    return on_lost(from, why, now);
  return fail({.time = now,
               .weight = kLostAgent,
               .member = from,
               .text = name_of(agent) + " left the job: " + why,
               .host_gone = true,
               .asked = true},
              now);
}

Leader::Sends Leader::on_ended(Member from, const AgentMessage& message, Time now) {
  Agent& agent = agents_.at(from);
  if (!agent.gives_up.empty() && phase_ == Phase::kRunning && !message.finished) {
    lost_output_ = lost_output_ || message.lost_output;
    vacate(from, loss_of(from, agent.gives_up, now), now);
    return tend_vacancies(now);
  }
  agent.gives_up.clear();
  // No failure was reported, and ranks are missing.
  const bool too_early = replaces() && phase_ == Phase::kRunning && causes_.empty() &&
                         !message.failure && !message.finished && !message.well;
  serve(agent);
  agent.ended = true;
  agent.finished = message.finished;
  agent.well = message.well;
  agent.lost_output = message.lost_output;
  if (message.port != 0) agent.port = message.port;
  --pending_;
  // The last message about its failure has more of the log's end.
  for (Cause& cause : causes_) {
    if (cause.member != from || !cause.worker || !message.failure) continue;
    blame(cause, *message.failure, name_of(agent));
  }
  for (RankSight sight : message.sights) {
    sight.host = name_of(agent);
    sights_.push_back(std::move(sight));
  }
  Sends sends = stop_services_if_all_served();
  append(sends, too_early ? fail(loss_of(from, "ended its ranks before they were done", now), now)
                          : go_on_if_all_ended(now));
  return sends;
}

Leader::Sends Leader::fail(Cause cause, Time now) {
  const Member member = cause.member;
  const bool asked = cause.asked;
  const bool known = std::any_of(causes_.begin(), causes_.end(), [&](const Cause& other) {
    return other.member == member && other.host_gone == cause.host_gone;
  });
  if (!known) causes_.push_back(std::move(cause));
  // No rank is running on any host.
  if (phase_ == Phase::kMeeting || phase_ == Phase::kProposing) return end(&causes_.back());
  Sends sends;
  if (phase_ == Phase::kRunning) sends = stop(member, now, asked);
  append(sends, go_on_if_all_ended(now));
  return sends;
}

void Leader::begin_to_stop(Time now, bool asked) {
  close_vacancies();
  phase_ = Phase::kStopping;
  stop_asked_ = asked;
  answer_by_ = now + (asked ? options_.stop_grace : options_.grace) + kStopSlack;
}

AgentMessage Leader::stop_order(const Agent& agent) const {
  AgentMessage order = about(Kind::kStop, agent);
  order.number = stop_asked_ ? SIGTERM : 0;
  return order;
}

Leader::Sends Leader::stop(std::optional<Member> but, Time now, bool asked) {
  begin_to_stop(now, asked);
  next_beat_ = now + options_.beat;
  Sends sends;
  for (const auto& [member, agent] : agents_) {
    if (agent.member && !agent.lost && member != but) sends.push_back({member, stop_order(agent)});
  }
  return sends;
}

bool Leader::all_well() const {
  return std::all_of(agents_.begin(), agents_.end(), [](const auto& entry) {
    return !entry.second.member || (entry.second.well && !entry.second.lost);
  });
}

Leader::Sends Leader::on_lost(Member member, const std::string& how, Time now) {
  const auto it = agents_.find(member);
  if (it == agents_.end() || it->second.lost || phase_ == Phase::kOver) return {};
  Agent& agent = it->second;
  uncount(agent, now);
  if (phase_ == Phase::kProposing && agent.member) {
    // No rank runs yet, so it may join again.
    agent.lost = true;
    return meet_again(reason_, now);
  }
  if (phase_ == Phase::kMeeting || !agent.member) {
    same_hosts_ = same_hosts_ && !agent.member;
    forget(member);
    plan_to_take_in(now);
    return {};
  }
  Cause cause = loss_of(member, "vanished: " + how, now);
  if (phase_ == Phase::kRunning && replaces() && !(agent.ended && !agent.finished)) {
    const bool done = agent.ended;
    lost_output_ = lost_output_ || agent.lost_output;
    agent.gives_up.clear();  // it has not reported that its ranks have ended
    if (!done) vacate(member, std::move(cause), now);
    forget(member);
    return done ? Sends{} : tend_vacancies(now);
  }
  agent.lost = true;
  by_id_.erase(agent.id);
  pending_ -= agent.ended ? 0 : 1;
  serve(agent);
  if (agent.leaving) return go_on_if_all_ended(now);
  return fail(std::move(cause), now);
}

// Whether it has ended its ranks for a reason of its own, so that its place is free once they have
// ended: it was stopped for too long, or could not start them where it took a place.
bool Leader::gives_place_up(Agent& agent, const AgentMessage& failed) const {
  if (!has_spares() || phase_ != Phase::kRunning || failed.failure) return false;
  if (failed.stood_still) {
    agent.gives_up = "was stopped, and has ended its ranks";
  } else if (agent.plan.joins >= 0) {
    agent.gives_up = "could not start its ranks: " + failed.text;
    agent.unfit = true;
  }
  return !agent.gives_up.empty();
}

Leader::Cause Leader::loss_of(Member member, const std::string& how, Time now) const {
  const Agent& agent = agents_.at(member);
  // The time of the loss, not of its detection: its peers' reactions may have been found first.
  return {.time = std::min(agent.heard, now),
          .weight = kLostAgent,
          .member = member,
          .text = "the agent on " + name_of(agent) + " (" + agent.introduction.address + ", " +
                  ranks_of(agent) + ") " + how,
          .host_gone = true};
}

Leader::Sends Leader::on_trouble(const std::string& what, Time now) {
  if (phase_ == Phase::kOver) return {};
  final_ = true;
  return fail({.time = now, .weight = kLostAgent, .text = what}, now);
}

// The likeliest of those that were found at the same moment.
Leader::Cause* Leader::first_cause() {
  if (causes_.empty()) return nullptr;
  const Time first =
      std::min_element(causes_.begin(), causes_.end(), [](const Cause& a, const Cause& b) {
        return a.time < b.time;
      })->time;
  Cause* blamed = nullptr;
  for (Cause& cause : causes_) {
    if (cause.time > first + kSameMoment) continue;
    if (blamed == nullptr || cause.weight < blamed->weight) blamed = &cause;
  }
  return blamed;
}

Leader::Sends Leader::go_on_if_all_ended(Time now) {
  if (pending_ > 0 || !runs()) return {};
  Cause* cause = first_cause();
  if (cause == nullptr) {
    const bool all_finished = std::all_of(agents_.begin(), agents_.end(), [](const auto& entry) {
      return !entry.second.member || entry.second.finished;
    });
    // The ranks were stopped for newcomers, unless these came too late.
    if (phase_ == Phase::kStopping && !all_finished) return meet_again(reason_, now);
    return end(nullptr);
  }
  // The requester has what it asked for.
  if (cause->asked && final_ && all_well()) return end(nullptr);
  if (cause->worker) judge(*cause->worker, sights_);
  const bool rank_failed = cause->worker && cause->exit_code != 2;
  if (final_ || !restarts_allowed() || !(cause->host_gone || rank_failed)) return end(cause);
  if (rank_failed && restarts_ >= options_.max_restarts) return end(cause);
  std::string line = "restart, not counted: ";
  if (rank_failed)
    line = "restart " + std::to_string(++restarts_) + " of " +
           std::to_string(options_.max_restarts) + ": ";
  return meet_again(line + text_of(*cause), now);
}

Leader::Sends Leader::end(const Cause* cause) {
  phase_ = Phase::kOver;
  over_ = about(Kind::kOver);
  if (cause != nullptr) {
    over_.exit_code = cause->exit_code;
    over_.failure = cause->worker;
    over_.text = cause->worker ? format_failure(*cause->worker, size_.ranks)
                               : "[lockstep] " + cause->text + "\n";
  } else if (lost_output_ || std::any_of(agents_.begin(), agents_.end(), [](const auto& entry) {
               return entry.second.member && entry.second.lost_output;
             })) {
    over_.exit_code = 1;  // each agent has reported its lost output
  }
  return to_all(over_);
}

// No ranks are left there that services would serve.
void Leader::serve(Agent& agent) {
  unserved_ -= agent.served ? 0 : 1;
  agent.served = true;
}

// Sent to the agents that have services.
Leader::Sends Leader::stop_services_if_all_served() {
  if (unserved_ > 0 || services_stopped_ || phase_ != Phase::kRunning) return {};
  services_stopped_ = true;
  Sends sends;
  for (const auto& [member, agent] : agents_) {
    if (agent.member && !agent.ended) sends.push_back({member, about(Kind::kStopServices, agent)});
  }
  return sends;
}

Leader::Sends Leader::on_time(Time now) {
  Sends sends;
  if (to_claim() && now >= join_by_)
    append(sends, on_trouble("the number of the next generation could not be written within " +
                                 seconds_text(options_.join_timeout),
                             now));
  append(sends, form_if_enough(now));
  if (phase_ == Phase::kMeeting && now >= gives_up_at()) append(sends, on_trouble(too_few(), now));
  append(sends, take_newcomers_in(now));
  append(sends, tend_vacancies(now));
  append(sends, let_leave(now));
  if (phase_ == Phase::kOver) return sends;
  if (now >= next_beat_) {
    next_beat_ = now + options_.beat;
    for (const auto& [member, agent] : agents_) {
      if (member != kSelf && !agent.lost) sends.push_back({member, word_to(agent)});
    }
  }
  std::vector<std::pair<Member, std::string>> lost;
  for (const auto& [member, agent] : agents_) {
    if (member == kSelf || agent.lost) continue;
    if (now >= agent.heard + options_.silence) {
      if (agent.member && !agent.ended && phase_ != Phase::kProposing) {
        // It may or may not have been told to stop on request.
        const bool asked = phase_ == Phase::kStopping && stop_asked_;
        const auto grace = asked ? std::max(options_.grace, options_.stop_grace) : options_.grace;
        not_before_ = std::max(not_before_, ranks_gone_by(now, options_.beat, grace));
      }
      lost.emplace_back(member, "nothing was heard of it for " + seconds_text(options_.silence));
    } else if (phase_ == Phase::kStopping && agent.member && !agent.ended && now >= answer_by_) {
      lost.emplace_back(member, "it did not stop its ranks");
    } else if (phase_ == Phase::kProposing && agent.member && !agent.ready && now >= answer_by_) {
      lost.emplace_back(member, "it did not take its plan");
    }
  }
  for (const auto& [member, how] : lost) append(sends, on_lost(member, how, now));
  return sends;
}

Leader::Time Leader::next_time() const {
  Time next = next_beat_;
  if (phase_ == Phase::kMeeting) {
    next = std::min(next, gives_up_at());
    // Where a majority was waited for, the last call is long over.
    if (has_enough()) next = std::min(next, begins_at());
  }
  if (to_claim()) next = std::min(next, join_by_);
  if (phase_ != Phase::kRunning) return next;
  if (take_in_at_) next = std::min(next, *take_in_at_);
  for (const auto& [member, agent] : agents_)
    if (agent.leaves_at) next = std::min(next, *agent.leaves_at);
  return next;
}

bool Leader::present(Member member) const {
  const auto it = agents_.find(member);
  return it != agents_.end() && !it->second.lost;
}

bool Leader::has_number(int number) const {
  return std::any_of(agents_.begin(), agents_.end(), [&](const auto& entry) {
    return entry.second.introduction.number == number && !entry.second.lost;
  });
}

}  // namespace lockstep::inline v0::launch
