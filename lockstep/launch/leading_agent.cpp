#include "lockstep/launch/leading_agent.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/interfaces.h"

namespace lockstep::inline v0::launch {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = AgentMessage::Kind;

constexpr auto kNoteAfter = std::chrono::seconds(5);
// The time for asking another agent that would lead.
constexpr auto kLookForEnd = std::chrono::milliseconds(500);
constexpr int kLooksApart = 5;  // the pause is this many times as long as the look
// A thread of this process answers.
constexpr auto kOwnStore = std::chrono::seconds(10);
// Time for an agent that has passed the challenge to join.
constexpr auto kIntroduction = std::chrono::seconds(10);
constexpr size_t kMaxUnauthenticated = 4096;
constexpr int kMaxRefusalLines = 5;  // later ones are dropped
// Time for the others to hear that the job is over, and for remote agents' last output.
constexpr auto kFarewell = std::chrono::seconds(10);

LeaderOptions leader_options(const LaunchOptions& options, const Former& former) {
  const NodesOptions& nodes = *options.nodes;
  LeaderOptions leader;
  leader.nodes = nodes.nodes;
  leader.min_nodes = nodes.min_nodes;
  leader.spare_nodes = nodes.spare_nodes;
  leader.last_call = nodes.last_call;
  leader.on_failure = on_failure_of(options);
  leader.max_restarts = options.max_restarts;
  leader.numbered = nodes.number.has_value() || !nodes.remotes.empty();
  leader.names = nodes.names;
  leader.run_id = options.run_id;
  leader.job = to_hex(random_bytes(8));
  leader.join_timeout = nodes.join_timeout;
  leader.beat = nodes.beat;
  leader.silence = nodes.silence;
  leader.grace = options.grace;
  leader.stop_grace = options.stop_grace;
  if (has_standby(nodes)) leader.endpoints = static_cast<int>(nodes.endpoints.size());
  leader.fenced = nodes.server == NodesOptions::Server::kElected;
  leader.not_before = former.ranks_until;
  if (!former.lost.empty()) {
    leader.reason = "restart, not counted: the agent that led vanished: " + former.lost;
    // A spare does not know them.
    leader.former_hosts = former.seen < 0 ? 0 : former.plan.nodes;
    leader.former_ranks = former.seen < 0 ? 0 : former.plan.world_size;
  }
  return leader;
}

}  // namespace

LeadingAgent::LeadingAgent(const LaunchOptions& options, const Former& former,
                           EtcdElection* election, const std::string& listen, uint16_t port,
                           Console& out, Console& err)
    : Peers(introduction(options, former)),
      options_(options),
      nodes_(*options.nodes),
      election_(election),
      err_(err),
      store_({listen, port}, nodes_.secret),
      leader_(leader_options(options, former), Clock::now()),
      endpoint_(former.endpoint),
      begun_(former.plan.job.empty() ? -1 : former.plan.generation),
      look_at_(Clock::now() + nodes_.beat),
      reached_at_(listen),
      note_at_(Clock::now() + kNoteAfter) {
  listener_.emplace(
      listen_tcp({listen, 0}), nodes_.secret,
      wire::Listener::Service{.where = "the agents' listener",
                              .purpose = AgentChannel::kPurpose,
                              .most = kMaxUnauthenticated,
                              .says = [this](const std::string& line) { say_refused(line); }});
  if (listen == "0.0.0.0") reached_at_ = "127.0.0.1";
  if (listen == "::") reached_at_ = "::1";
  own_address_ = reached_at_;
  put(kAgentPortKey, std::to_string(local_address(listener_->door()).port));
  if (!nodes_.remotes.empty()) {
    std::vector<HostPort> endpoints;
    for (const std::string& address :
         candidate_addresses(interface_addresses(), nodes_.interface)) {
      endpoints.push_back({address, store_.address().port});
    }
    // Used where the "remote" host is this one after all.
    if (nodes_.interface.empty()) endpoints.push_back({"127.0.0.1", store_.address().port});
    remotes_ = std::make_unique<RemoteAgents>(options, endpoints, out, err);
  }
  set_port(next_port());
  if (election_ == nullptr) {
    introduced_ = true;
    say(beat());
    return;
  }
  std::vector<HostPort> endpoints;
  for (const std::string& address : candidate_addresses(interface_addresses(), nodes_.interface))
    endpoints.push_back({address, store_.address().port});
  if (nodes_.interface.empty()) endpoints.push_back({"127.0.0.1", store_.address().port});
  election_->election().stand(encode_endpoints(former.agent, endpoints), Clock::now());
}

// Leads once it is elected, and asks whether the next generation may begin.
void LeadingAgent::hold_election(PollSet& polls) {
  if (election_ == nullptr) return;
  election_->watch(polls);
  Election& election = election_->election();
  const Time now = Clock::now();
  if (!lost().empty() || leader_.over()) return;
  if (!election.hopeless().empty())
    return step_down(election_->name() + " cannot be used: " + election.hopeless());
  if (election.standing() == Election::Standing::kDeposed) return step_down("another agent leads");
  if (election.standing() != Election::Standing::kLeading) return;
  // It may be cut off, with a part of the hosts.
  if (leader_.others_may_begin() && election.overdue(now))
    return step_down(election_->name() + " was not reached, and the other hosts may begin anew");
  if (!introduced_) {
    introduced_ = true;
    // It was not led by the agent that formed that generation, whose ranks may not know yet that it
    // leads no more. A number that this agent has proposed itself may be the other one's by now.
    if (election.newest() > begun_)
      leader_.wait_until(ranks_gone_by(now, nodes_.beat, options_.grace));
    leader_.skip_to(election.newest());
    say(beat());
  }
  if (const auto generation = leader_.to_claim()) {
    if (const auto granted = election.take_claimed(*generation)) {
      dispatch(leader_.on_claimed(*generation, *granted, election.newest(), now));
    } else {
      election.claim(*generation, now);
    }
  }
  // Sends a request that has just become due.
  election_->watch(polls);
}

// Two agents may lead where a link was cut, though only one of them can have formed a generation.
// The one at the earlier endpoint stays, unless the other's generation is newer than those that it
// knows.
void LeadingAgent::look_at_other_endpoints(Time now) {
  if (endpoint_ < 0 || !leader_.meeting() || now < look_at_) return;
  for (size_t i = 0; i < nodes_.endpoints.size(); ++i) {
    if (static_cast<int>(i) == endpoint_) continue;
    try {
      const HostPort there{resolve(nodes_.endpoints[i].host), nodes_.endpoints[i].port};
      if (refuses(there)) continue;
      const Deadline deadline = Deadline::after(kLookForEnd);
      const auto generation =
          TcpStore(there, nodes_.secret, deadline).peek(kGenerationKey, deadline);
      if (static_cast<int>(i) < endpoint_ ||
          (generation && parse_int(*generation).value_or(-1) > seen()))
        return step_down("the agent at " + nodes_.endpoints[i].to_string() + " leads");
    } catch (const Error&) {
      // It cannot be reached, or belongs to another job.
    }
  }
  // Looking at a host that does not answer takes time, which joining agents wait for.
  const Time end = Clock::now();
  look_at_ = end + std::max<Time::duration>(nodes_.beat, kLooksApart * (end - now));
}

// The others then look for the leader, and so does this agent. Connected agents learn of it by
// their connections and have ended their ranks when they join anew; only this agent knows of those
// that have fallen silent.
void LeadingAgent::step_down(const std::string& why) {
  listener_.reset();
  connections_.clear();
  AgentMessage stop;
  stop.kind = Kind::kStop;
  if (plan()) hear(stop);
  set_lost(why, leader_.not_before());
}

// Writes to the store that this agent serves.
void LeadingAgent::put(const char* key, const std::string& value) {
  const Deadline deadline = Deadline::after(kOwnStore);
  TcpStore(HostPort{own_address_, store_.address().port}, nodes_.secret, deadline)
      .offer(key, value, deadline);
}

uint16_t LeadingAgent::next_port() {
  master_port_.emplace(std::nullopt);
  return master_port_->port();
}

void LeadingAgent::say(const AgentMessage& message) {
  dispatch(leader_.on_message(Leader::kSelf, message, "", Clock::now()));
}

std::string LeadingAgent::reached_at() const {
  for (const auto& [member, connection] : connections_) {
    if (leader_.present(member)) return connection.channel.local().host;
  }
  return reached_at_;
}

void LeadingAgent::complete(NodePlan& plan) {
  const std::string here = reached_at();
  if (plan.master.host.empty()) plan.master.host = here;
  plan.store.host = here;
  plan.interface = interface_of(interface_addresses(), here).value_or("");
}

// The next generation must not see the keys of the previous one.
void LeadingAgent::have_store_of(int generation) {
  if (generation == ranks_store_of_) return;
  ranks_store_ =
      std::make_unique<TcpStoreServer>(HostPort{store_.address().host, 0}, nodes_.secret);
  ranks_store_of_ = generation;
}

void LeadingAgent::dispatch(const Leader::Sends& sends) {
  for (const auto& [to, sent] : sends) {
    AgentMessage message = sent;
    if (message.kind == Kind::kPlan) {
      have_store_of(message.plan.joins < 0 ? message.plan.generation : message.plan.joins);
      message.plan.store.port = ranks_store_->address().port;
    }
    if (to == Leader::kSelf) {
      if (message.kind == Kind::kStart && !message.text.empty() && !options_.quiet)
        err_.put(-2, {message.text}, "");
      if (message.kind == Kind::kStart && endpoint_ >= 0)
        put(kGenerationKey, std::to_string(message.generation));
      take(message);
    } else if (const auto it = connections_.find(to); it != connections_.end()) {
      it->second.channel.send(message);
    }
  }
  for (const std::string& line : leader_.take_lines())
    if (!options_.quiet) err_.put(-2, {line}, "");
  if (leader_.over()) listener_.reset();  // the next job may begin
}

void LeadingAgent::accept_all() {
  while (listener_) {
    auto connection = listener_->next();
    if (!connection) return;
    try {
      AgentChannel channel(std::move(connection->fd));
      connections_.emplace(next_member_++, Connection{std::move(channel), Clock::now()});
    } catch (const SystemError&) {
      continue;  // it has left already
    }
  }
}

void LeadingAgent::say_refused(const std::string& line) {
  if (++refusals_ <= kMaxRefusalLines) err_.put(-2, {"[lockstep] " + line + "\n"}, "");
}

void LeadingAgent::serve(Leader::Member member) {
  Connection& connection = connections_.at(member);
  if (connection.dead) return;
  try {
    for (const AgentMessage& message : connection.channel.pump()) {
      dispatch(leader_.on_message(member, message, connection.channel.peer().host, Clock::now()));
    }
  } catch (const Error& error) {
    connection.dead = true;
    if (!leader_.present(member) && dynamic_cast<const StoreError*>(&error) != nullptr)
      say_refused("closed the connection from " + connection.channel.peer().to_string() + ": " +
                  error.what());
    dispatch(leader_.on_lost(member, error.what(), Clock::now()));
  }
}

void LeadingAgent::drop_the_dead(Time now) {
  std::erase_if(connections_, [&](const auto& entry) {
    const Connection& connection = entry.second;
    return connection.dead ||
           (!leader_.present(entry.first) && now >= connection.since + kIntroduction);
  });
}

void LeadingAgent::say_who_is_missing(Time now) {
  if (leader_.meeting() && !was_meeting_) note_at_ = now + kNoteAfter;
  was_meeting_ = leader_.meeting();
  if (!note_at_ || now < *note_at_) return;
  note_at_.reset();
  if (!leader_.meeting() || options_.quiet) return;
  err_.put(-2,
           {"[lockstep] waiting for " + leader_.missing() + " (" +
            std::to_string(std::min(leader_.joined(), nodes_.nodes)) + " of " +
            std::to_string(nodes_.nodes) + " are here, the store is at " +
            store_.address().to_string() + ")\n"},
           "");
}

// An agent whose ssh has ended does not return.
void LeadingAgent::look_for_ends_of_remotes(Time now) {
  for (const RemoteAgents::End& end : remotes_->take_ends()) {
    // The job can do without a spare.
    if (end.number < nodes_.nodes)
      remote_ends_.push_back(end);
    else if (!leader_.over())
      err_.put(-2, {"[lockstep] " + end.what + "; it was a spare\n"}, "");
  }
  for (const RemoteAgents::End& end : remote_ends_) {
    if (!leader_.meeting() || leader_.has_number(end.number)) continue;
    dispatch(leader_.on_trouble(
        end.what + (leader_.generation() < 0 ? " before the agent there had joined the job"
                                             : ", and its agent does not come back"),
        now));
  }
}

void LeadingAgent::watch(PollSet& polls) {
  hold_election(polls);
  if (!lost().empty()) return;
  look_at_other_endpoints(Clock::now());
  if (!lost().empty()) return;
  const Time now = Clock::now();
  if (leader_.asks()) say(beat());
  dispatch(leader_.on_time(now));
  drop_the_dead(now);
  say_who_is_missing(now);
  if (remotes_) {
    remotes_->watch(polls);
    look_for_ends_of_remotes(now);
    polls.wake_at(now + nodes_.beat);  // without pidfds, exits are polled for
  }
  if (listener_) polls.add(listener_->fd(), POLLIN, [this] { accept_all(); });
  for (const auto& [member, connection] : connections_) {
    if (connection.dead) continue;
    polls.add(connection.channel.fd(), connection.channel.events(),
              [this, id = member] { serve(id); });
  }
  if (!leader_.over()) polls.wake_at(leader_.next_time());
  if (leader_.meeting()) polls.wake_at(note_at_);
  polls.wake_at(leave_by_);
}

std::optional<Peers::Time> LeadingAgent::given_up_at() const {
  // No other agent can lead, so no generation begins before this one's ranks have ended, however
  // long it is stopped.
  if (election_ == nullptr && endpoint_ < 0) return std::nullopt;
  // No agent waits for messages of one that has ended, or does not lead.
  const bool beats = lost().empty() && !leader_.over();
  return (beats ? leader_.last_beat() : Clock::now()) + nodes_.silence;
}

bool LeadingAgent::left() {
  const Time now = Clock::now();
  if (!leave_by_) {
    leave_by_ = now + kFarewell;
    if (election_ != nullptr) election_->election().resign(now);
    if (remotes_) remotes_->let_go();
  }
  if (now >= *leave_by_) return true;
  // The other agents close their connections after they have received it.
  for (const auto& [member, connection] : connections_) {
    if (!connection.dead && leader_.present(member)) return false;
  }
  if (election_ != nullptr && election_->election().resigning()) return false;
  return !remotes_ || remotes_->all_ended();
}

}  // namespace lockstep::inline v0::launch
