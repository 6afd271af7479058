#include "lockstep/launch/leader.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/verdict.h"

namespace lockstep::launch {
namespace {

using Kind = AgentMessage::Kind;

// Failures that are found within so long of the first may be its cause: a dead peer's end reaches
// other hosts faster than its own agent's report.
constexpr auto kSameMoment = std::chrono::seconds(1);
// Beyond the grace, for an agent to end its ranks and say so.
constexpr auto kStopSlack = std::chrono::seconds(10);

enum Weight { kLostAgent, kKilled, kOther, kWaited };

std::string seconds(std::chrono::milliseconds time) {
  std::string text = std::to_string(time.count() / 1000);
  if (time.count() % 1000 != 0) text += "." + std::to_string(time.count() % 1000 / 100);
  return text + " s";
}

AgentMessage message_of(Kind kind) {
  AgentMessage message;
  message.kind = kind;
  return message;
}

}  // namespace

Leader::Leader(LeaderOptions options, Time now)
    : options_(std::move(options)),
      join_by_(now + options_.join_timeout),
      next_beat_(now + options_.beat) {}

int Leader::joined() const {
  return static_cast<int>(std::count_if(agents_.begin(), agents_.end(), [](const auto& entry) {
    return entry.second.introduction.ranks > 0;
  }));
}

std::string Leader::missing() const {
  if (!options_.numbered) {
    const int count = options_.nodes - joined();
    return std::to_string(count) + (count == 1 ? " more host" : " more hosts");
  }
  std::string text;
  for (int number = 0; number < options_.nodes; ++number) {
    if (has_number(number)) continue;
    const auto i = static_cast<size_t>(number);
    text += (text.empty() ? "" : ", ") +
            (i < options_.names.size() ? options_.names[i] : "node " + std::to_string(number));
  }
  return text;
}

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

Leader::Sends Leader::to_all(const AgentMessage& message, std::optional<Member> but) const {
  Sends sends;
  for (const auto& [member, agent] : agents_) {
    if (!agent.lost && member != but) sends.push_back({member, message});
  }
  return sends;
}

Leader::Sends Leader::on_message(Member from, const AgentMessage& message,
                                 const std::string& address, Time now) {
  if (message.kind == Kind::kJoin) return join(from, message, address, now);
  const auto it = agents_.find(from);
  if (it == agents_.end() || it->second.lost || phase_ == Phase::kOver) return {};
  Agent& agent = it->second;
  agent.heard = now;
  switch (message.kind) {
    case Kind::kFailed: {
      Cause cause{.time = now, .member = from};
      if (message.failure) {
        blame(cause, *message.failure, name_of(agent));
      } else {
        cause.text = name_of(agent) + ": " + message.text;
        cause.exit_code = message.exit_code;
      }
      return fail(std::move(cause), now);
    }
    case Kind::kSignal: {
      Sends sends = to_all(message, from);
      if (message.number == SIGUSR1 || message.number == SIGUSR2) {
        // A member's user signal is for its own ranks, the first agent's is for all.
        return from == kSelf ? sends : Sends{};
      }
      Cause cause{.time = now,
                  .member = from,
                  .text = "the job was stopped by " + signal_name(message.number) +
                          " to the agent on " + name_of(agent)};
      if (phase_ == Phase::kMeeting) {
        // A member that was still to join just leaves.
        return from == kSelf ? fail(std::move(cause), now) : Sends{};
      }
      if (phase_ == Phase::kRunning) {
        phase_ = Phase::kStopping;
        stop_by_ = now + options_.grace + kStopSlack;
        causes_.push_back(std::move(cause));
      }
      return sends;
    }
    case Kind::kServed:
      agent.served = true;
      return stop_services_if_all_served();
    case Kind::kEnded:
      agent.ended = true;
      // Its last word about its failure has more of the log's tail.
      for (Cause& cause : causes_) {
        if (cause.member != from || !cause.worker || !message.failure) continue;
        blame(cause, *message.failure, name_of(agent));
      }
      for (RankSight sight : message.sights) {
        sight.host = name_of(agent);
        sights_.push_back(std::move(sight));
      }
      if (Sends sends = stop_services_if_all_served(); !sends.empty()) return sends;
      return finish_if_all_ended();
    default:
      return {};
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

Leader::Sends Leader::join(Member from, const AgentMessage& message, const std::string& address,
                           Time now) {
  const auto refuse = [&](const std::string& why) {
    AgentMessage refused = message_of(Kind::kRefused);
    refused.text = why;
    return Sends{{from, refused}};
  };
  const NodeIntroduction& node = message.introduction;
  if (agents_.contains(from)) return {};
  if (phase_ != Phase::kMeeting) return refuse("the job has begun, with all its hosts");
  if (message.run_id != options_.run_id) {
    return refuse("the agents there belong to job '" + options_.run_id + "', not to '" +
                  message.run_id + "' (--rdzv-id)");
  }
  if (message.nodes != options_.nodes) {
    return refuse("the agents there were started for " + std::to_string(options_.nodes) +
                  " hosts, this one for " + std::to_string(message.nodes) + " (--nnodes)");
  }
  if (options_.numbered != (node.number >= 0) && node.ranks > 0) {
    return refuse(std::string("the agents there ") + (options_.numbered ? "have" : "do not have") +
                  " node ranks, this one is otherwise (--node-rank)");
  }
  for (const auto& [member, other] : agents_) {
    if (node.ranks > 0 && node.number >= 0 && other.introduction.number == node.number) {
      return refuse("node " + std::to_string(node.number) + " has joined already, from " +
                    other.introduction.host + " (--node-rank)");
    }
  }
  Agent agent;
  agent.introduction = node;
  agent.introduction.address = address;
  agent.port = message.port;
  agent.heard = now;
  agents_.emplace(from, std::move(agent));
  return joined() == options_.nodes && agents_.contains(kSelf) ? plans(now) : Sends{};
}

Leader::Sends Leader::plans(Time now) {
  phase_ = Phase::kRunning;
  std::vector<NodeIntroduction> nodes;
  for (const auto& [member, agent] : agents_) nodes.push_back(agent.introduction);
  const std::vector<size_t> order = order_nodes(nodes);
  const std::vector<NodePlan> plans = assign_ranks(nodes, order);
  // Rank 0's host keeps the port for its ranks' own store.
  HostPort master;
  size_t i = 0;
  for (const auto& [member, agent] : agents_) {
    if (plans[i].node_rank == 0 && plans[i].local_ranks > 0)
      master = {agent.introduction.address, agent.port};
    ++i;
  }
  Sends sends;
  i = 0;
  for (auto& [member, agent] : agents_) {
    agent.plan = plans[i++];
    agent.plan.master = master;
    agent.heard = now;
    AgentMessage message = message_of(Kind::kPlan);
    message.plan = agent.plan;
    sends.push_back({member, message});
  }
  return sends;
}

Leader::Sends Leader::fail(Cause cause, Time now) {
  const Member member = cause.member;
  causes_.push_back(std::move(cause));
  if (phase_ == Phase::kMeeting) {
    // No rank runs anywhere.
    for (auto& [id, agent] : agents_) agent.ended = true;
    phase_ = Phase::kStopping;
    return finish_if_all_ended();
  }
  if (phase_ != Phase::kRunning) return finish_if_all_ended();
  phase_ = Phase::kStopping;
  stop_by_ = now + options_.grace + kStopSlack;
  Sends sends = to_all(message_of(Kind::kStop), member);
  Sends more = finish_if_all_ended();
  sends.insert(sends.end(), more.begin(), more.end());
  return sends;
}

Leader::Sends Leader::on_lost(Member member, const std::string& how, Time now) {
  const auto it = agents_.find(member);
  if (it == agents_.end() || it->second.lost || phase_ == Phase::kOver) return {};
  Agent& agent = it->second;
  if (phase_ == Phase::kMeeting) {
    agents_.erase(it);  // it may come again
    return {};
  }
  agent.lost = true;
  // When it was lost, not when that was noticed: what its peers made of it may have come first.
  return fail({.time = std::min(agent.heard, now),
               .weight = kLostAgent,
               .member = member,
               .text = "the agent on " + name_of(agent) + " (" + agent.introduction.address + ", " +
                       ranks_of(agent) + ") vanished: " + how},
              now);
}

Leader::Sends Leader::on_trouble(const std::string& what, Time now) {
  if (phase_ == Phase::kOver) return {};
  return fail({.time = now, .weight = kLostAgent, .text = what}, now);
}

Leader::Sends Leader::finish_if_all_ended() {
  const bool all = std::all_of(agents_.begin(), agents_.end(), [](const auto& entry) {
    return entry.second.ended || entry.second.lost;
  });
  if (!all || phase_ == Phase::kMeeting) return {};
  phase_ = Phase::kOver;
  AgentMessage over = message_of(Kind::kOver);
  if (!causes_.empty()) {
    const Time first =
        std::min_element(causes_.begin(), causes_.end(), [](const Cause& a, const Cause& b) {
          return a.time < b.time;
        })->time;
    Cause* blamed = nullptr;
    for (Cause& cause : causes_) {
      if (cause.time > first + kSameMoment) continue;
      if (blamed == nullptr || cause.weight < blamed->weight) blamed = &cause;
    }
    over.exit_code = blamed->exit_code;
    if (blamed->worker) {
      judge(*blamed->worker, sights_);
      int world_size = 0;
      for (const auto& [member, agent] : agents_) {
        world_size = std::max(world_size, agent.plan.world_size);
      }
      over.text = format_failure(*blamed->worker, world_size);
      over.failure = blamed->worker;
    } else {
      over.text = "[lockstep] " + blamed->text + "\n";
    }
  }
  return to_all(over);
}

// To those that have services; once, since each member says both of its words once.
Leader::Sends Leader::stop_services_if_all_served() const {
  const bool all = std::all_of(agents_.begin(), agents_.end(), [](const auto& entry) {
    return entry.second.served || entry.second.ended;
  });
  if (!all || phase_ != Phase::kRunning) return {};
  Sends sends;
  for (const auto& [member, agent] : agents_) {
    if (!agent.ended) sends.push_back({member, message_of(Kind::kStopServices)});
  }
  return sends;
}

Leader::Sends Leader::on_time(Time now) {
  Sends sends;
  const auto add = [&](Sends more) {
    sends.insert(sends.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  };
  if (phase_ == Phase::kMeeting && now >= join_by_) {
    add(on_trouble("only " + std::to_string(joined()) + " of " + std::to_string(options_.nodes) +
                       " hosts joined within " + seconds(options_.join_timeout) + "; missing: " +
                       missing() + " (--rdzv-conf join_timeout=SECONDS waits longer)",
                   now));
  }
  if (phase_ == Phase::kOver) return sends;
  if (now >= next_beat_) {
    next_beat_ = now + options_.beat;
    add(to_all(message_of(Kind::kBeat), kSelf));
  }
  std::vector<std::pair<Member, std::string>> lost;
  for (const auto& [member, agent] : agents_) {
    if (member == kSelf || agent.lost) continue;
    if (now >= agent.heard + options_.silence) {
      lost.emplace_back(member, "nothing was heard of it for " + seconds(options_.silence));
    } else if (phase_ == Phase::kStopping && !agent.ended && now >= stop_by_) {
      lost.emplace_back(member, "it did not stop its ranks");
    }
  }
  for (const auto& [member, how] : lost) add(on_lost(member, how, now));
  return sends;
}

bool Leader::present(Member member) const {
  const auto it = agents_.find(member);
  return it != agents_.end() && !it->second.lost;
}

bool Leader::has_number(int number) const {
  return std::any_of(agents_.begin(), agents_.end(),
                     [&](const auto& entry) { return entry.second.introduction.number == number; });
}

Leader::Time Leader::next_time() const {
  Time next = next_beat_;
  if (phase_ == Phase::kMeeting) next = std::min(next, join_by_);
  return next;
}

}  // namespace lockstep::launch
