// Leader: what the first agent decides for all agents of a job: when enough of them are there, which
// ranks each host has, that a failure anywhere stops the ranks everywhere, whether all are started
// anew then and on which hosts, when services have nobody left to serve, and which failure was the
// first.
//
// A generation is the ranks that run together. It forms in two steps: every member gets its plan and
// says so, then all are told to start. So nobody runs in one that another member has not heard of,
// and a number is never used twice: not by this leader, nor after it, since who joins says the
// newest that it has seen.
//
// Pure: it is told the time and returns the messages to send.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/agent_message.h"

namespace lockstep::launch {

struct LeaderOptions {
  int nodes = 1;                   // hosts with ranks; with min_nodes below, at most
  int min_nodes = 0;               // so few are enough; 0: all
  bool numbered = false;           // every host was given its number
  std::vector<std::string> names;  // of the hosts by number, where they are known beforehand
  std::string run_id;
  std::string job;  // its name, unless an agent that joins knows one from a generation before
  OnFailure on_failure = OnFailure::kStop;
  int max_restarts = 0;  // after failures of ranks
  std::chrono::milliseconds join_timeout{600'000};
  // Below `nodes` hosts, after the last one that came or went.
  std::chrono::milliseconds last_call{30'000};
  std::chrono::milliseconds beat{1000};     // between messages of an agent that has nothing to say
  std::chrono::milliseconds silence{8000};  // after which an agent counts as vanished
  std::chrono::milliseconds grace{5000};    // that stopped ranks have on every host
  std::chrono::milliseconds stop_grace{25'000};  // the same where nothing failed
  // Of the agents that may lead; more than one: a generation needs more than half of the agents of
  // the one before, so that no two of them can form one; the first one needs an agent at each.
  int endpoints = 1;
  bool fenced = false;  // a generation begins only once on_claimed() allows it
  // No generation begins earlier: ranks of the one before may still run, of an agent that led.
  std::chrono::steady_clock::time_point not_before{};
  std::string reason;  // why the first generation is not the job's first; "": it is
  int former_hosts = 0, former_ranks = 0;  // of the one before then
};

// Who has heard nothing of another agent until `now`, and gives it up: by then that one has noticed as much, and its
// ranks have been stopped, and killed after their grace.
inline std::chrono::steady_clock::time_point ranks_gone_by(
    std::chrono::steady_clock::time_point now, std::chrono::milliseconds beat,
    std::chrono::milliseconds grace) {
  constexpr std::chrono::seconds kSlack(1);
  return now + beat + grace + kSlack;
}

class Leader {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Member = int;  // a connection; kSelf is the first agent itself
  static constexpr Member kSelf = 0;

  struct Send {
    Member to = kSelf;
    AgentMessage message;
  };
  using Sends = std::vector<Send>;

  Leader(LeaderOptions options, Time now);

  // Something that an agent said, itself included. `address` is where it is, as seen from here; ""
  // for kSelf.
  Sends on_message(Member from, const AgentMessage& message, const std::string& address, Time now);
  // The member's connection is closed, by itself or because of nonsense that it sent.
  Sends on_lost(Member member, const std::string& how, Time now);
  // The job cannot go on for another reason, which `what` says.
  Sends on_trouble(const std::string& what, Time now);
  Sends on_time(Time now);
  Time next_time() const;
  // When all other agents were last told that this one is there.
  Time last_beat() const { return next_beat_ - options_.beat; }
  // Generations up to this one were formed by others.
  void skip_to(int generation) { generation_ = std::max(generation_, generation); }
  // The generation whose number is to be claimed before it begins.
  std::optional<int> to_claim() const;
  // The number is this leader's, or is not, since `newest` was formed already.
  Sends on_claimed(int generation, bool granted, int newest, Time now);

  // Hosts are waited for although there are enough: they are not half of those before.
  bool lacks_majority() const { return meeting() && !why_no_majority().empty(); }
  // No ranks run: hosts are waited for.
  bool meeting() const { return phase_ == Phase::kMeeting; }
  bool over() const { return phase_ == Phase::kOver; }
  // No generation begins earlier: ranks of agents that have fallen silent may still run.
  Time not_before() const { return not_before_; }
  // The newest; -1: there was none.
  int generation() const { return generation_; }
  // "hostB", "node 2", or how many: the hosts that have not joined.
  std::string missing() const;
  // Hosts with ranks, those that wait for the next generation included.
  int joined() const { return hosts_; }
  bool has_number(int number) const;
  // It has joined and is not lost.
  bool present(Member member) const;

 private:
  enum class Phase { kMeeting, kProposing, kRunning, kStopping, kOver };
  struct Agent {
    std::string id;
    NodeIntroduction introduction;
    uint16_t port = 0;
    int seen = -1, restarts = 0, endpoint = -1;
    std::string job;
    Time heard;
    bool counted = false;   // in hosts_
    bool member = false;    // of the newest generation
    bool ready = false;     // it has its plan
    bool started = false;   // it has said that it runs
    bool served = false;    // only services are left there
    bool ended = false;     // all its ranks have
    bool finished = false;  // by themselves, with 0
    bool well = false;      // with 0, whoever told them to
    bool lost_output = false;
    bool leaving = false;
    bool lost = false;
    NodePlan plan;
  };
  // What may have been the generation's end.
  struct Cause {
    Time time;
    int weight = 2;  // the lower, the likelier the cause of others found at the same moment
    Member member = kSelf;
    std::optional<WorkerFailure> worker = {};
    std::string text = {};  // of what is no rank's failure
    int exit_code = 1;
    bool host_gone = false;
    bool asked = false;  // for by SIGTERM: nothing failed
  };

  static void blame(Cause& cause, const WorkerFailure& failure, const std::string& host);
  static std::string text_of(const Cause& cause);
  Sends join(Member from, const AgentMessage& message, const std::string& address, Time now);
  std::string why_not(const AgentMessage& message) const;
  void count(Agent& agent, Time now);
  void uncount(Agent& agent, Time now);
  void forget(Member member);
  std::string too_few() const;
  int min_nodes() const { return options_.min_nodes > 0 ? options_.min_nodes : options_.nodes; }
  bool restarts_allowed() const { return options_.on_failure == OnFailure::kRestart; }

  Sends form_if_enough(Time now);
  std::vector<Member> choose_members() const;
  std::string why_no_majority() const;
  Formation formation() const;
  Sends propose(Time now);
  Sends start_if_all_ready(Time now);
  Sends start(Time now);
  Sends on_signal(Member from, const Agent& agent, int signal, Time now);
  Sends on_leave(Member from, const std::string& why, Time now);
  Sends on_ended(Member from, const AgentMessage& message, Time now);
  Sends fail(Cause cause, Time now);
  Sends stop(std::optional<Member> but, Time now, bool asked);
  void begin_to_stop(Time now, bool asked);
  AgentMessage stop_order() const;
  bool all_well() const;
  void plan_to_take_in(Time now);
  Sends take_newcomers_in(Time now);
  Sends go_on_if_all_ended(Time now);
  Sends meet_again(const std::string& why, Time now);
  Sends end(const Cause* cause);
  Cause* first_cause();
  void serve(Agent& agent);
  Sends stop_services_if_all_served();
  Sends to_all(const AgentMessage& message, std::optional<Member> but = {}) const;
  AgentMessage word_to(const Agent& agent) const;
  AgentMessage about(AgentMessage::Kind kind) const;
  std::string restart_line() const;
  std::string name_of(const Agent& agent) const;
  std::string ranks_of(const Agent& agent) const;

  LeaderOptions options_;
  Phase phase_ = Phase::kMeeting;
  int generation_ = -1;
  int restarts_ = 0;  // that counted
  Time join_by_;
  Time next_beat_;
  Time changed_at_;                 // when a host last came or went
  Time answer_by_{};                // what the phase waits for
  std::optional<Time> take_in_at_;  // newcomers, while ranks run
  Time not_before_;                 // no generation begins: ranks of the one before may still run
  bool same_hosts_ = false;         // in a meeting: all of the generation before are still there
  int hosts_ = 0;
  int pending_ = 0;   // members that have not said what the phase waits for
  int unserved_ = 0;  // members with ranks that are no services
  bool services_stopped_ = false;
  bool stop_asked_ = false;  // what stops this generation is no failure
  struct Size {
    int hosts = 0, ranks = 0;
  };
  Size size_, former_size_;     // of this generation, and of the one before that ran
  std::string reason_;          // why there is a new generation
  bool final_ = false;          // the job ends with this one
  std::set<Member> signalled_;  // agents that were told to stop by a signal
  std::map<Member, Agent> agents_;
  std::map<std::string, Member> by_id_;
  std::vector<Formation> known_;   // with endpoints > 1
  std::vector<Cause> causes_;      // of this generation
  std::vector<RankSight> sights_;  // of the agents that have ended
  AgentMessage over_;
};

}  // namespace lockstep::launch
