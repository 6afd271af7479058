// How an agent finds the leading agent, or becomes it.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/launch/joined_agent.h"
#include "lockstep/launch/leading_agent.h"
#include "lockstep/launch/rendezvous.h"

namespace lockstep::inline v0::launch {
namespace {

using Clock = std::chrono::steady_clock;

// Long enough for a connection that works, and short enough to check for signals and to try the
// next address.
constexpr auto kAttempt = std::chrono::milliseconds(1500);
constexpr auto kPause = std::chrono::milliseconds(200);
constexpr double kNoteAfterSeconds = 5;
// An agent of the previous job may be leaving; more often, the secret differs.
constexpr int kRefusalsAllowed = 5;
// After the first agent was lost: its port may stay closed for this long, on a host that answers.
constexpr auto kComesBack = std::chrono::seconds(3);
constexpr auto kNoneLeads = std::chrono::seconds(10);  // after which another agent may take over

// The signal that ends a launch before it has begun; 0: none arrived.
int stopping_signal(SignalPipe& signals) {
  for (const int signal : signals.take()) {
    if (signal != SIGUSR1 && signal != SIGUSR2) return signal;
  }
  return 0;
}

class Joining {
 public:
  Joining(const LaunchOptions& options, const Former& former, EtcdElection* election,
          SignalPipe& signals, Console& out, Console& err)
      : options_(options),
        former_(former),
        election_(election),
        nodes_(*options.nodes),
        signals_(signals),
        out_(out),
        err_(err),
        deadline_(Deadline::after(nodes_.join_timeout)),
        has_met_(!former.lost.empty()) {}

  Joined run() {
    if (election_ != nullptr) election_->election().look(Clock::now());
    const bool standby = has_standby(nodes_);
    while (true) {
      // Where a second agent may lead, the first one looks for it before it leads.
      std::unique_ptr<Peers> first = election_ != nullptr ? stand() : standby ? nullptr : serve(0);
      if (first) {
        if (auto joined = meet(std::move(first))) return std::move(*joined);
        if (election_ != nullptr) election_->election().look(Clock::now());
      }
      if (std::unique_ptr<Peers> other = connect(where())) {
        alone_since_.reset();
        if (auto joined = meet(std::move(other))) return std::move(*joined);
      }
      if (std::unique_ptr<Peers> instead = standby ? stand_by() : nullptr) {
        alone_since_.reset();
        if (auto joined = meet(std::move(instead))) return std::move(*joined);
        hopeless_ = nullptr;
      }
      if (hopeless_) std::rethrow_exception(hopeless_);
      if (const int signal = stopping_signal(signals_)) return {nullptr, signal};
      if (lifeline_ended()) return {nullptr, SIGTERM};
      if (deadline_.expired()) give_up();
      if (election_ == nullptr && !former_.lost.empty() && nobody_listens()) say_that_it_is_gone();
      say_that_it_waits();
      pause();
    }
  }

 private:
  // Returns nullopt if the host has no address now. During a job that is temporary, at its
  // beginning it is a mistake.
  std::optional<std::string> address_of(const std::string& host) {
    try {
      return resolve(host);
    } catch (const InvalidArgument& error) {
      if (!has_met_) throw;
      why_ = error.what();
      return std::nullopt;
    }
  }

  // Returns nullptr if this agent is not the first.
  std::unique_ptr<Peers> serve(size_t place) {
    using Server = NodesOptions::Server;
    if (nodes_.server == Server::kOther) return nullptr;
    const std::vector<InterfaceAddress> here = interface_addresses();
    HostPort endpoint{"0.0.0.0", 0};
    if (!nodes_.endpoints.empty()) {
      endpoint = nodes_.endpoints[place];
    } else if (const auto candidates = candidate_addresses(here);
               !candidates.empty() && candidates.front().find(':') != std::string::npos) {
      endpoint.host = "::";  // this host has only IPv6
    }
    const std::optional<std::string> address = address_of(endpoint.host);
    if (!address) return nullptr;
    const Rendezvous rendezvous = decide_rendezvous(nodes_, endpoint.host, *address, here);
    if (!rendezvous.may_serve) return nullptr;
    try {
      return std::make_unique<LeadingAgent>(options_, own(), nullptr, rendezvous.listen,
                                            endpoint.port, out_, err_);
    } catch (const SystemError& error) {
      if (rendezvous.must_serve || error.errnum() != EADDRINUSE) throw;
      return nullptr;
    }
  }

  // Where etcd elects and there is no leader: a candidate, which meet() may find to have lost.
  std::unique_ptr<Peers> stand() {
    Election& election = election_->election();
    if (!election.hopeless().empty())
      fail(election_->name() + " cannot be used: " + election.hopeless() +
           " (--rdzv-endpoint, --rdzv-conf)");
    if (!election.trouble().empty()) why_ = election_->name() + ": " + election.trouble();
    if (!election.vacant()) return nullptr;
    const std::vector<InterfaceAddress> here = interface_addresses();
    const std::vector<std::string> addresses = candidate_addresses(here, nodes_.interface);
    std::string listen = "0.0.0.0";
    if (!nodes_.interface.empty()) {
      listen = addresses.front();
    } else if (!addresses.empty() && addresses.front().find(':') != std::string::npos) {
      listen = "::";
    }
    return std::make_unique<LeadingAgent>(options_, former_, election_, listen, 0, out_, err_);
  }

  // The endpoint on this host; -1: none.
  int own_endpoint() {
    const std::vector<InterfaceAddress> here = interface_addresses();
    for (size_t i = 0; i < nodes_.endpoints.size(); ++i) {
      const std::string& host = nodes_.endpoints[i].host;
      const std::optional<std::string> address = address_of(host);
      if (address && decide_rendezvous(nodes_, host, *address, here).may_serve)
        return static_cast<int>(i);
    }
    return -1;
  }
  Former own() {
    Former former = former_;
    if (has_standby(nodes_)) former.endpoint = own_endpoint();
    return former;
  }

  // No other endpoint could be reached. Then the first agent leads, or after a while one at a later
  // endpoint that was part of the job.
  std::unique_ptr<Peers> stand_by() {
    const int place = own_endpoint();
    if (place < 0) return nullptr;
    if (!alone_since_) alone_since_ = Clock::now();
    const bool takes_over = !former_.known.empty() && Clock::now() >= *alone_since_ + kComesBack;
    return place == 0 || takes_over ? serve(static_cast<size_t>(place)) : nullptr;
  }

  // The possible addresses of the first agent.
  std::vector<HostPort> where() {
    if (has_standby(nodes_)) {
      std::vector<HostPort> listening;
      for (const HostPort& endpoint : nodes_.endpoints) {
        const std::optional<std::string> address = address_of(endpoint.host);
        if (!address) continue;
        const HostPort there{*address, endpoint.port};
        if (!refuses(there)) listening.push_back(there);
      }
      return listening;
    }
    if (election_ == nullptr) return nodes_.endpoints;
    return decode_endpoints(election_->election().leader());
  }

  // nullptr: no agent could be reached.
  std::unique_ptr<JoinedAgent> connect(const std::vector<HostPort>& endpoints) {
    std::exception_ptr refused, unreachable;
    size_t hopeless = 0;
    for (const HostPort& endpoint : endpoints) {
      const std::optional<std::string> address = address_of(endpoint.host);
      if (!address) continue;
      try {
        return std::make_unique<JoinedAgent>(options_, own(), HostPort{*address, endpoint.port},
                                             Deadline::after(kAttempt));
      } catch (const StoreError&) {
        refused = std::current_exception();
      } catch (const Timeout& error) {
        why_ = error.what();
      } catch (const SystemError& error) {
        why_ = error.what();
        unreachable = std::current_exception();
        hopeless += may_connect_later({*address, endpoint.port}, error.errnum()) ? 0 : 1;
      }
    }
    // During a job another agent may be found elsewhere, as where etcd elects it.
    const bool for_good = !has_met_ && election_ == nullptr && hopeless == nodes_.endpoints.size();
    hopeless_ = for_good ? unreachable : nullptr;
    if (refused && ++refusals_ > kRefusalsAllowed) give_up_after(refused);
    return nullptr;
  }

  [[noreturn]] void give_up_after(const std::exception_ptr& refused) const {
    if (election_ == nullptr) std::rethrow_exception(refused);
    try {
      std::rethrow_exception(refused);
    } catch (const StoreError& error) {
      fail(std::string(error.what()) + "; it leads job '" + options_.run_id +
           "', and another job needs another --rdzv-id");
    }
  }

  // Returns nullopt if the first agent has left: try again.
  std::optional<Joined> meet(std::unique_ptr<Peers> peers) {
    const auto* member = dynamic_cast<const JoinedAgent*>(peers.get());
    bool told = false;
    while (!peers->plan()) {
      PollSet polls;
      polls.add(signals_.fd(), POLLIN);
      peers->watch(polls);
      flush(polls);
      if (member != nullptr && !peers->refusal().empty())
        fail("this agent cannot join: " + peers->refusal());
      if (!peers->lost().empty()) {
        remember(*peers, member != nullptr);
        return std::nullopt;
      }
      if (peers->last_word()) {
        // The job ended without this host, which was a spare.
        if (!peers->waits().empty()) return Joined{std::move(peers), 0};
        leave_failed(*peers);
      }
      say_why_it_waits(*peers);
      polls.wait();
      const int signal = stopping_signal(signals_);
      if (signal == 0 || told) continue;
      told = true;
      AgentMessage message;
      message.kind = AgentMessage::Kind::kSignal;
      message.number = signal;
      peers->tell(message);
      if (member == nullptr) leave(*peers);
      return Joined{nullptr, signal};
    }
    return Joined{std::move(peers), 0};
  }

  // The messages of the lost agent must not be forgotten, including plans that never began: others
  // may have begun them.
  void remember(const Peers& peers, bool led_by_another) {
    has_met_ = true;
    former_.seen = peers.seen();
    former_.known = peers.known();
    if (!peers.waits().empty()) former_.ran_with = 0;  // others run, without this one
    former_.ranks_until = std::max(former_.ranks_until, peers.lost_ranks_until());
    // One that waited, as a spare, knows as well that the job runs.
    const bool runs = !former_.lost.empty() || !peers.waits().empty();
    if (led_by_another && runs) former_.lost = peers.lost();
    // However long the meeting took, the search for the next one starts now.
    deadline_ = Deadline::after(nodes_.join_timeout);
    refused_since_.reset();
  }

  void flush(PollSet& polls) {
    for (Console* console : {&out_, &err_}) {
      console->flush();
      console->watch(polls);
    }
  }

  // Notifies the other agents.
  void leave(Peers& peers) {
    const Deadline deadline = Deadline::seconds(5);
    while (!peers.left() && !deadline.expired()) {
      PollSet polls;
      peers.watch(polls);
      flush(polls);
      polls.wake_at(deadline.time());
      polls.wait();
    }
    out_.flush();
    err_.flush();
  }

  [[noreturn]] void leave_failed(Peers& peers) {
    std::string text = peers.last_word()->text;
    const bool mistake = peers.last_word()->exit_code == 2;
    leave(peers);
    const std::string head = "[lockstep] ";
    if (text.starts_with(head)) text.erase(0, head.size());
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (mistake) fail(text);
    give_up(text);
  }

  bool lifeline_ended() const {
    pollfd waiting{nodes_.lifeline, POLLIN, 0};
    char byte;
    return nodes_.lifeline >= 0 && ::poll(&waiting, 1, 0) > 0 &&
           ::read(nodes_.lifeline, &byte, 1) == 0;
  }

  bool nobody_listens() {
    const bool refused = std::all_of(
        nodes_.endpoints.begin(), nodes_.endpoints.end(), [this](const HostPort& endpoint) {
          const std::optional<std::string> address = address_of(endpoint.host);
          return address && refuses({*address, endpoint.port});
        });
    if (!refused) refused_since_.reset();
    if (refused && !refused_since_) refused_since_ = Clock::now();
    return refused &&
           Clock::now() >= *refused_since_ + (has_standby(nodes_) ? kNoneLeads : kComesBack);
  }

  std::string place() const {
    return election_ != nullptr ? election_->name() : nodes_.endpoints.front().to_string();
  }

  // A job that ran has failed; one that never began was not found.
  [[noreturn]] void fail(const std::string& what) const {
    if (former_.lost.empty()) throw LaunchError(what);
    throw PeerLost(what, -1);
  }
  // The same for errors after which a later try may succeed.
  [[noreturn]] void give_up(const std::string& what) const {
    if (former_.lost.empty()) throw Timeout(what);
    throw PeerLost(what, -1);
  }

  [[noreturn]] void say_that_it_is_gone() const {
    fail("the first agent of the job, at " + place() + ", vanished: " + former_.lost +
         "; no agent leads the job any more, start it again (another agent would with " +
         (nodes_.spare_nodes > 0 ? "" : "a second --rdzv-endpoint HOST:PORT,HOST:PORT, or ") +
         "--rdzv-backend etcd)");
  }

  void say_why_it_waits(const Peers& peers) {
    if (peers.waits().empty() || told_why_ || options_.quiet) return;
    told_why_ = true;
    err_.put(-2, {"[lockstep] " + peers.waits() + "\n"}, "");
  }

  [[noreturn]] void give_up() {
    const std::string waited =
        std::to_string(static_cast<int64_t>(deadline_.timeout_seconds())) + " s";
    if (!former_.lost.empty())
      give_up("the first agent of the job, at " + place() + ", vanished: " + former_.lost +
              "; none was found within " + waited);
    give_up("no first agent to join within " + waited + ": " + why_);
  }

  void say_that_it_waits() {
    if (said_ || options_.quiet || deadline_.elapsed_seconds() < kNoteAfterSeconds) return;
    said_ = true;
    err_.put(-2, {"[lockstep] waiting for the first agent (" + place() + ")\n"}, "");
  }

  void pause() {
    PollSet polls;
    flush(polls);
    polls.add(signals_.fd(), POLLIN);
    polls.add(nodes_.lifeline, POLLIN);
    if (election_ != nullptr) election_->watch(polls);
    polls.wake_at(Clock::now() + kPause);
    polls.wait();
  }

  const LaunchOptions& options_;
  Former former_;  // of all agents met so far
  EtcdElection* const election_;
  const NodesOptions& nodes_;
  SignalPipe& signals_;
  Console& out_;
  Console& err_;
  Deadline deadline_;  // for finding a leading agent
  bool has_met_;       // it met a leader, or led itself, before: the endpoints are right
  std::string why_ = "it did not answer";
  std::exception_ptr hopeless_;  // why no endpoint can ever be reached
  int refusals_ = 0;
  bool said_ = false;
  bool told_why_ = false;
  std::optional<Clock::time_point> refused_since_;
  std::optional<Clock::time_point> alone_since_;
};

}  // namespace

Joined join_peers(const LaunchOptions& options, const Former& former, EtcdElection* election,
                  SignalPipe& signals, Console& out, Console& err) {
  return Joining(options, former, election, signals, out, err).run();
}

}  // namespace lockstep::inline v0::launch
