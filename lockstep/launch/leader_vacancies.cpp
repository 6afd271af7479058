// The part of Leader that gives the place of a lost host to another one, while the ranks of the
// others run.
#include <signal.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/leader.h"

namespace lockstep::inline v0::launch {
namespace {

using Kind = AgentMessage::Kind;

// Ranks that were passing their last barrier when the host was lost have said so by then.
constexpr auto kSettles = std::chrono::milliseconds(100);

}  // namespace

// The job waits for the ranks of the next host as it did for those of this one.
void Leader::vacate(Member member, Cause cause, Time now) {
  Agent& agent = agents_.at(member);
  // Ranks of a silent agent may still run.
  const Time not_before = agent.gives_up.empty() ? std::max(now, not_before_) : now;
  vacancies_.push_back({.plan = agent.plan,
                        .cause = std::move(cause),
                        .since = now,
                        .not_before = not_before,
                        .until = not_before + options_.join_timeout,
                        .past_end = agent.past_end});
  unserved_ += agent.served ? 1 : 0;
  agent.member = false;
  agent.gives_up.clear();
}

Leader::Sends Leader::tend_vacancies(Time now) {
  Sends sends;
  bool closed = false;
  for (size_t i = 0; i < vacancies_.size();) {
    Vacancy& vacancy = vacancies_[i];
    if (vacancy.candidate || !all_heard_since(vacancy.since + kSettles)) {
      ++i;
    } else if (vacancy.past_end || past_end()) {
      lines_.push_back("[lockstep] " + vacancy.cause.text +
                       "; all ranks had done their last step by then\n");
      close(i);
      closed = true;
    } else if (!has_spares() || (now >= vacancy.until && !spare_for(vacancy.plan))) {
      Cause cause = std::move(vacancy.cause);
      if (has_spares())
        cause.text += "; no host took its place within " + seconds_text(options_.join_timeout) +
                      " (--rdzv-conf join_timeout=SECONDS waits longer)";
      close(i);
      return fail(std::move(cause), now);
    } else {
      append(sends, offer(vacancy, now));
      ++i;
    }
  }
  if (!closed) return sends;
  append(sends, stop_services_if_all_served());
  append(sends, go_on_if_all_ended(now));
  return sends;
}

// Proposes the place to a spare host, if there is one. Numbers that must be claimed are claimed one
// after another.
Leader::Sends Leader::offer(Vacancy& vacancy, Time now) {
  const std::optional<Member> spare = spare_for(vacancy.plan);
  if (!spare && !std::exchange(vacancy.said, true))
    lines_.push_back("[lockstep] " + vacancy.cause.text + "; its place is free for another host\n");
  if (!spare || now < vacancy.not_before) return {};
  if (options_.fenced && candidate(/*ready=*/false)) return {};
  for (const auto& [member, agent] : agents_) generation_ = std::max(generation_, agent.seen);
  Agent& agent = agents_.at(*spare);
  agent.plan = vacancy.plan;
  if (agent.plan.joins < 0) agent.plan.joins = vacancy.plan.generation;
  agent.plan.generation = ++generation_;
  ++agent.plan.moves;
  agent.candidate = true;
  forget_ranks(agent);
  vacancy.candidate = spare;
  return {{*spare, word_to(agent)}};
}

// The candidate has its plan.
Leader::Sends Leader::take_place(Member member, Time now) {
  Agent& agent = agents_.at(member);
  if (agent.ready) return {};  // the agent reports it with every beat
  agent.ready = true;
  join_by_ = now + options_.join_timeout;
  return options_.fenced ? Sends{} : begin_in_place(member);
}

Leader::Sends Leader::begin_in_place(Member member) {
  Agent& agent = agents_.at(member);
  agent.candidate = false;
  agent.member = true;
  const auto vacancy = std::find_if(vacancies_.begin(), vacancies_.end(),
                                    [&](const Vacancy& one) { return one.candidate == member; });
  lines_.push_back("[lockstep] " + vacancy->cause.text + "; " + ranks_of(agent) +
                   (agent.plan.local_ranks == 1 ? " is" : " are") + " started on " +
                   name_of(agent) + "\n");
  vacancies_.erase(vacancy);
  return {{member, about(Kind::kStart, agent)}};
}

// The member is no candidate any more.
void Leader::withdraw(Member member) {
  agents_.at(member).candidate = false;
  for (Vacancy& vacancy : vacancies_)
    if (vacancy.candidate == member) vacancy.candidate.reset();
}

// No rank waits for those of that place any more.
void Leader::close(size_t vacancy) {
  if (const auto member = vacancies_[vacancy].candidate) withdraw(*member);
  vacancies_.erase(vacancies_.begin() + static_cast<std::ptrdiff_t>(vacancy));
  --pending_;
  --unserved_;
}

// The job ends, in which the lost hosts may have a part.
void Leader::close_vacancies() {
  while (!vacancies_.empty()) {
    causes_.push_back(std::move(vacancies_.back().cause));
    close(vacancies_.size() - 1);
  }
}

bool Leader::all_heard_since(Time time) const {
  return std::all_of(agents_.begin(), agents_.end(), [time](const auto& entry) {
    const Agent& agent = entry.second;
    return !agent.member || agent.lost || agent.ended || agent.heard >= time;
  });
}

bool Leader::past_end() const {
  return std::any_of(agents_.begin(), agents_.end(), [](const auto& entry) {
    return entry.second.member && entry.second.past_end;
  });
}

bool Leader::is_free(const Agent& agent) {
  return agent.counted && !agent.member && !agent.candidate && !agent.lost && !agent.leaving &&
         !agent.unfit;
}

std::optional<Leader::Member> Leader::spare_for(const NodePlan& plan) const {
  for (const auto& [member, agent] : agents_)
    if (is_free(agent) && agent.introduction.ranks >= plan.local_ranks) return member;
  return std::nullopt;
}

// Whether there is a spare for each place that is free, or would be if all left that ask to.
bool Leader::spares_suffice() const {
  std::vector<int> places, spares;
  for (const Vacancy& vacancy : vacancies_)
    if (!vacancy.candidate) places.push_back(vacancy.plan.local_ranks);
  for (const auto& [member, agent] : agents_) {
    if (agent.leaves_at || !agent.gives_up.empty()) places.push_back(agent.plan.local_ranks);
    if (is_free(agent)) spares.push_back(agent.introduction.ranks);
  }
  std::sort(places.rbegin(), places.rend());
  std::sort(spares.rbegin(), spares.rend());
  return spares.size() >= places.size() &&
         std::equal(places.begin(), places.end(), spares.begin(), std::less_equal<int>());
}

// Decides about the hosts whose agents were asked to leave: spares take their places, or the job
// stops as it was asked to. Ranks that have done their last step, or serve others that have, are
// not replaced.
Leader::Sends Leader::let_leave(Time now) {
  const auto any = [&](const auto& is) {
    return std::any_of(agents_.begin(), agents_.end(), [&](const auto& entry) {
      return entry.second.leaves_at && is(entry.second);
    });
  };
  if (phase_ != Phase::kRunning || !any([&](const Agent& a) { return now >= *a.leaves_at; }))
    return {};
  const bool any_done = any([](const Agent& agent) { return agent.ended || agent.served; });
  const bool may = !any_done && !past_end() && !services_stopped_ && spares_suffice();
  Sends sends;
  for (auto& [member, agent] : agents_) {
    if (!agent.leaves_at || now < *agent.leaves_at) continue;
    agent.leaves_at.reset();
    if (!may) {
      append(sends, on_signal(member, agent, SIGTERM, now));
      sends.push_back({member, stop_order(agent)});
      return sends;
    }
    agent.leaving = true;
    agent.gives_up = "left the job: " + agent.why_leaves;
    uncount(agent, now);
    sends.push_back({member, about(Kind::kLeave, agent)});
  }
  return sends;
}

// Each once.
void Leader::say_spares() {
  for (auto& [member, agent] : agents_) {
    if (!has_spares() || agent.member || !agent.counted || agent.said_spare) continue;
    agent.said_spare = true;
    lines_.push_back("[lockstep] " + name_of(agent) + " is a spare\n");
  }
}

// The first that is to take a place; `ready`: and has its plan.
std::optional<Leader::Member> Leader::candidate(bool ready) const {
  for (const auto& [member, agent] : agents_)
    if (agent.candidate && (agent.ready || !ready)) return member;
  return std::nullopt;
}

}  // namespace lockstep::inline v0::launch
