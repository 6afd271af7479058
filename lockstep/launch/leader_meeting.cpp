// The part of Leader that gathers the hosts of a generation.
#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/leader.h"

namespace lockstep::inline v0::launch {
namespace {

using Kind = AgentMessage::Kind;

// Time for members to take their plans, besides the silence that loses them anyway.
constexpr auto kPlanSlack = std::chrono::seconds(10);

std::string range_of(int min, int max) {
  return min == max ? std::to_string(max) + (max == 1 ? " host" : " hosts")
                    : std::to_string(min) + " to " + std::to_string(max) + " hosts";
}

}  // namespace

std::string Leader::missing() const {
  if (hosts_ >= min_nodes() && min_nodes() < options_.nodes)
    return "up to " + count_of(options_.nodes - hosts_, "more host");
  if (!options_.numbered || min_nodes() < options_.nodes)
    return count_of(min_nodes() - hosts_, "more host");
  std::string text;
  for (int number = 0; number < options_.nodes; ++number) {
    if (has_number(number)) continue;
    const auto i = static_cast<size_t>(number);
    text += (text.empty() ? "" : ", ") +
            (i < options_.names.size() ? options_.names[i] : "node " + std::to_string(number));
  }
  return text;
}

std::string Leader::too_few() const {
  const std::string waited = seconds_text(options_.join_timeout);
  const std::string needed = min_nodes() < options_.nodes ? "at least " : "";
  if (hosts_ >= min_nodes() && lacks_majority())
    return (reason_.empty() ? "" : reason_ + "; ") + why_no_majority() +
           ", which did not come within " + waited;
  if (!reason_.empty())
    return reason_ + "; " + count_of(hosts_, "host") + (hosts_ == 1 ? " is" : " are") +
           " left of " + needed + std::to_string(min_nodes()) + " needed, and " + missing() +
           " did not come within " + waited + " (--rdzv-conf join_timeout=SECONDS waits longer)";
  return "only " + std::to_string(hosts_) + " of " + needed + std::to_string(min_nodes()) +
         " hosts joined within " + waited + "; missing: " + missing() +
         " (--rdzv-conf join_timeout=SECONDS waits longer)";
}

// Two agents with the same number count once: the second replaces the first when that leaves.
void Leader::count(Agent& agent, Time now) {
  if (agent.introduction.ranks == 0) return;
  if (agent.introduction.number >= 0) {
    for (const auto& [member, other] : agents_) {
      if (other.counted && other.introduction.number == agent.introduction.number) return;
    }
  }
  agent.counted = true;
  ++hosts_;
  changed_at_ = now;
}

void Leader::uncount(Agent& agent, Time now) {
  if (!agent.counted) return;
  agent.counted = false;
  --hosts_;
  changed_at_ = now;
  if (agent.introduction.number < 0) return;
  for (auto& [member, other] : agents_) {
    const bool same = other.introduction.number == agent.introduction.number;
    if (same && &other != &agent && !other.lost && !other.leaving) count(other, now);
  }
}

void Leader::forget(Member member) {
  const auto it = agents_.find(member);
  if (const auto known = by_id_.find(it->second.id);
      known != by_id_.end() && known->second == member)
    by_id_.erase(known);
  withdraw(member);
  agents_.erase(it);
}

// The reason why an agent cannot join; "": it can.
std::string Leader::why_not(const AgentMessage& message) const {
  const NodeIntroduction& node = message.introduction;
  if (message.run_id != options_.run_id)
    return "the agents there belong to job '" + options_.run_id + "', not to '" + message.run_id +
           "' (--rdzv-id)";
  const int min = message.min_nodes > 0 ? message.min_nodes : message.nodes;
  if (message.nodes != options_.nodes || min != min_nodes())
    return "the agents there were started for " + range_of(min_nodes(), options_.nodes) +
           ", this one for " + range_of(min, message.nodes) + " (--nnodes)";
  if (options_.numbered != (node.number >= 0) && node.ranks > 0)
    return std::string("the agents there ") + (options_.numbered ? "have" : "do not have") +
           " node ranks, this one is otherwise (--node-rank)";
  if (phase_ == Phase::kOver) return "the job has ended";
  if (phase_ != Phase::kMeeting && !restarts_allowed() && !has_spares()) {
    const std::string id =
        options_.run_id.empty() || options_.run_id == "none" ? "" : " '" + options_.run_id + "'";
    if (min_nodes() == options_.nodes)
      return "the job" + id + " has begun, with all its hosts; another job needs another endpoint";
    return "the job" + id +
           " has begun, and takes no hosts in later; --on-failure restart (or --max-restarts) of "
           "all agents allows it";
  }
  if (generation_ >= 0 && restarts_allowed()) return "";
  // It may later replace the other one.
  for (const auto& [member, other] : agents_) {
    if (node.ranks > 0 && node.number >= 0 && other.introduction.number == node.number &&
        !other.lost && (other.id.empty() || other.id != message.agent)) {
      return "node " + std::to_string(node.number) + " has joined already, from " +
             other.introduction.host + " (--node-rank)";
    }
  }
  return "";
}

Leader::Sends Leader::join(Member from, const AgentMessage& message, const std::string& address,
                           Time now) {
  if (const auto it = agents_.find(from); it != agents_.end()) {
    if (!it->second.lost) it->second.heard = now;
    return it->second.lost ? Sends{} : Sends{{from, word_to(it->second)}};
  }
  Sends sends;
  if (const std::string why = why_not(message); !why.empty()) {
    AgentMessage refused;
    refused.kind = Kind::kRefused;
    refused.text = why;
    return {{from, refused}};
  }
  if (const auto it = by_id_.find(message.agent); !message.agent.empty() && it != by_id_.end())
    sends = on_lost(it->second, "it connected anew", now);
  if (phase_ == Phase::kOver) return sends;
  if (phase_ == Phase::kMeeting && message.old_ranks_for.count() > 0)
    wait_until(now + message.old_ranks_for);
  Agent agent;
  agent.id = message.agent;
  agent.introduction = message.introduction;
  agent.introduction.address = address;
  agent.port = message.port;
  agent.seen = message.seen;
  agent.ran_with = message.ran_with;
  agent.endpoint = message.endpoint;
  agent.restarts = message.restarts;
  agent.job = message.job;
  agent.heard = now;
  count(agent, now);
  const Agent& added = agents_.emplace(from, std::move(agent)).first->second;
  if (!message.agent.empty()) by_id_[message.agent] = from;
  if (options_.endpoints > 1) {
    // Plans that this leader has proposed and not begun will never begin.
    const auto self = agents_.find(kSelf);
    std::vector<Formation> others = message.known;
    std::erase_if(others, [&](const Formation& formation) {
      return !formation.begun && self != agents_.end() && formation.by == self->second.id;
    });
    known_ = newest_formations(std::move(known_), others);
  }
  plan_to_take_in(now);
  if (phase_ != Phase::kMeeting) {
    sends.push_back({from, word_to(added)});
    say_spares();
    append(sends, tend_vacancies(now));
    return sends;
  }
  append(sends, form_if_enough(now));
  return sends;
}

// The hosts of the previous generation first, then others by number, or in the order of arrival.
std::vector<Leader::Member> Leader::choose_members() const {
  std::vector<std::tuple<bool, int, Member>> present;
  for (const auto& [member, agent] : agents_) {
    if (!agent.lost && !agent.leaving)
      present.emplace_back(!agent.member, agent.introduction.number, member);
  }
  std::sort(present.begin(), present.end());
  std::vector<Member> chosen;
  int hosts = 0;
  for (const auto& [newcomer, number, member] : present) {
    const Agent& agent = agents_.at(member);
    if (agent.introduction.ranks > 0 && (!agent.counted || hosts == options_.nodes)) continue;
    hosts += agent.introduction.ranks > 0 ? 1 : 0;
    chosen.push_back(member);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// Returns "" if the present agents may form a generation. Half of them suffice together with the
// former leader.
std::string Leader::why_no_majority() const {
  if (options_.endpoints < 2) return "";
  if (known_.empty()) {
    std::set<int> endpoints;
    for (const auto& [member, agent] : agents_) {
      if (agent.endpoint >= 0 && !agent.lost) endpoints.insert(agent.endpoint);
    }
    if (static_cast<int>(endpoints.size()) >= options_.endpoints) return "";
    return "the agent of each endpoint has to be there when the job begins";
  }
  for (const Formation& formation : known_) {
    size_t here = 0;
    bool led = false;
    for (const std::string& id : formation.agents) {
      const auto it = by_id_.find(id);
      if (it == by_id_.end()) continue;
      const Agent& agent = agents_.at(it->second);
      if (agent.lost || agent.leaving) continue;
      ++here;
      led = led || id == formation.by;
    }
    const size_t all = formation.agents.size();
    if (2 * here > all || (2 * here == all && led)) continue;
    return std::to_string(here) + " of the " + std::to_string(all) + " agents of generation " +
           std::to_string(formation.generation) +
           " are here, and more than half are needed for the next one";
  }
  return "";
}

Formation Leader::formation() const {
  Formation formation{
      .generation = generation_, .begun = false, .by = agents_.at(kSelf).id, .agents = {}};
  for (const auto& [member, agent] : agents_) {
    if (agent.member) formation.agents.push_back(agent.id);
  }
  return formation;
}

Leader::Sends Leader::form_if_enough(Time now) {
  if (phase_ != Phase::kMeeting || !has_enough() || now < not_before_) return {};
  const bool waited = same_hosts_ || now >= begins_at();
  const bool all = hosts_ >= options_.nodes && !lacks_first_hosts() && !lacks_former_hosts();
  return all || waited ? propose(now) : Sends{};
}

// Whether enough hosts are there for a generation.
bool Leader::has_enough() const {
  return agents_.contains(kSelf) && hosts_ >= min_nodes() && why_no_majority().empty();
}

// When these hosts begin although more might come.
Leader::Time Leader::begins_at() const {
  return std::max(not_before_, changed_at_ + last_call());
}

// When a meeting fails.
Leader::Time Leader::gives_up_at() const {
  return has_enough() ? std::max(join_by_, begins_at()) : join_by_;
}

// Whether the job ran before, led by another agent.
bool Leader::takes_over() const {
  return !has_led_ && std::any_of(agents_.begin(), agents_.end(),
                                  [](const auto& entry) { return entry.second.seen >= 0; });
}

// Hosts that had ranks when their leader was lost join once those have ended. One that does not
// come may not have noticed the loss yet.
std::chrono::milliseconds Leader::last_call() const {
  if (!takes_over()) return options_.last_call;
  const Time gone = ranks_gone_by(Time{}, options_.beat, options_.grace) + options_.silence;
  return std::max(options_.last_call,
                  std::chrono::duration_cast<std::chrono::milliseconds>(gone - Time{}));
}

// Spares and newcomers may be enough for a generation while hosts that had ranks, the former
// leader's aside, still end them.
bool Leader::lacks_former_hosts() const {
  if (!takes_over()) return false;
  int back = 0, hosts = has_spares() ? options_.nodes : 0;
  for (const auto& [member, agent] : agents_) {
    back += agent.ran_with > 0 ? 1 : 0;
    hosts = std::max(hosts, agent.ran_with);
  }
  return back < hosts - 1;
}

// Whether spares are there before hosts that should have ranks instead.
bool Leader::lacks_first_hosts() const {
  for (int number = 0; options_.numbered && number < options_.nodes; ++number)
    if (!has_number(number)) return true;
  return false;
}

Leader::Sends Leader::propose(Time now) {
  const std::vector<Member> members = choose_members();
  phase_ = Phase::kProposing;
  answer_by_ = now + options_.silence + kPlanSlack;
  next_beat_ = now + options_.beat;
  pending_ = static_cast<int>(members.size());
  for (auto& [member, agent] : agents_) {
    generation_ = std::max(generation_, agent.seen);
    restarts_ = std::max(restarts_, agent.restarts);
    if (!agent.job.empty()) options_.job = agent.job;
    agent.member = false;
    forget_ranks(agent);
  }
  ++generation_;
  std::vector<NodeIntroduction> nodes;
  for (const Member member : members) nodes.push_back(agents_.at(member).introduction);
  const std::vector<NodePlan> plans = assign_ranks(nodes, order_nodes(nodes));
  // Rank 0's host reserves the port for its ranks' own store.
  HostPort master;
  for (size_t i = 0; i < members.size(); ++i) {
    if (plans[i].node_rank == 0 && plans[i].local_ranks > 0)
      master = {nodes[i].address, agents_.at(members[i]).port};
  }
  size_ = {plans.front().nodes, plans.front().world_size};
  Sends sends;
  for (size_t i = 0; i < members.size(); ++i) {
    Agent& agent = agents_.at(members[i]);
    agent.member = true;
    agent.plan = plans[i];
    agent.plan.master = master;
    agent.plan.generation = generation_;
    agent.plan.restarts = restarts_;
    agent.plan.job = options_.job;
  }
  for (const Member member : members) sends.push_back({member, word_to(agents_.at(member))});
  return sends;
}

std::optional<int> Leader::to_claim() const {
  const bool waits =
      phase_ == Phase::kProposing ? pending_ == 0 : candidate(/*ready=*/true).has_value();
  return options_.fenced && waits ? std::optional(generation_) : std::nullopt;
}

Leader::Sends Leader::on_claimed(int generation, bool granted, int newest, Time now) {
  if (to_claim() != generation) return {};
  const std::optional<Member> newcomer = candidate(/*ready=*/true);
  if (granted) return newcomer ? begin_in_place(*newcomer) : start(now);
  generation_ = std::max(generation_, newest);
  if (newcomer) {
    withdraw(*newcomer);
    return {};
  }
  phase_ = Phase::kMeeting;
  same_hosts_ = true;
  return form_if_enough(now);
}

Leader::Sends Leader::start_if_all_ready(Time now) {
  if (pending_ > 0) return {};
  join_by_ = now + options_.join_timeout;
  return options_.fenced ? Sends{} : start(now);
}

Leader::Sends Leader::start(Time now) {
  phase_ = Phase::kRunning;
  has_led_ = true;
  if (options_.endpoints > 1) {
    known_ = {formation()};
    known_.front().begun = true;
  }
  causes_.clear();
  sights_.clear();
  unserved_ = 0;
  services_stopped_ = false;
  Sends sends;
  for (const auto& [member, agent] : agents_) {
    if (!agent.member) continue;
    ++pending_;
    ++unserved_;
    sends.push_back({member, about(Kind::kStart, agent)});
    if (member == kSelf && !reason_.empty()) sends.back().message.text = restart_line();
  }
  reason_.clear();
  former_size_ = size_;
  say_spares();
  plan_to_take_in(now);
  return sends;
}

std::string Leader::restart_line() const {
  const auto change = [](int from, int to, const char* what) {
    return count_of(from, what) + (from == to ? "" : " -> " + std::to_string(to));
  };
  std::string line = "[lockstep] " + reason_;
  const bool changed = former_size_.hosts != size_.hosts || former_size_.ranks != size_.ranks;
  if (changed && former_size_.hosts > 0)
    line += "; " + change(former_size_.hosts, size_.hosts, "host") + ", " +
            change(former_size_.ranks, size_.ranks, "rank");
  return line + "\n";
}

Leader::Sends Leader::meet_again(const std::string& why, Time now) {
  phase_ = Phase::kMeeting;
  reason_ = why;
  join_by_ = std::max(now, not_before_) + options_.join_timeout;
  same_hosts_ = true;
  take_in_at_.reset();
  std::vector<Member> gone;
  for (const auto& [member, agent] : agents_) {
    if (agent.lost || agent.leaving) gone.push_back(member);
  }
  for (const Member member : gone) {
    forget(member);
    same_hosts_ = false;
  }
  causes_.clear();
  return form_if_enough(now);
}

// Hosts that arrive while ranks run are taken in once no other has arrived for a while, so that
// several cost one restart; at once when no other can arrive.
void Leader::plan_to_take_in(Time now) {
  take_in_at_.reset();
  if (phase_ != Phase::kRunning || !restarts_allowed() || size_.hosts >= options_.nodes) return;
  if (hosts_ <= size_.hosts) return;
  take_in_at_ = hosts_ >= options_.nodes ? now : changed_at_ + options_.last_call;
}

Leader::Sends Leader::take_newcomers_in(Time now) {
  if (!take_in_at_ || now < *take_in_at_ || phase_ != Phase::kRunning) return {};
  take_in_at_.reset();
  std::string names;
  for (const auto& [member, agent] : agents_) {
    // The job is almost finished.
    if (agent.member && (agent.served || agent.ended)) return {};
    if (agent.counted && !agent.member) names += (names.empty() ? "" : ", ") + name_of(agent);
  }
  reason_ = "restart, not counted: " + names + " joined";
  return stop({}, now, true);
}

}  // namespace lockstep::inline v0::launch
