// Leader: the first agent's decisions for all agents of a job: when enough of them are there, which
// ranks each host has, that a failure on any host stops the ranks on all, whether all are then
// restarted and on which hosts, which host takes the place of one that is lost, when services have
// no ranks left to serve, and which failure was the first.
//
// A generation is the ranks that run together. It forms in two steps: every member gets its plan
// and confirms it, then all are told to start. No member therefore runs a generation that another
// member does not know, and a number is never used twice, neither by this leader nor by a later
// one, since joining agents report the newest that they have seen. Where ranks are replaced and a
// host is lost, the host that takes its place forms a generation of its own in the same two steps,
// with a new number, while those of the others go on.
//
// Pure: it is told the time and returns the messages to send.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/launch/agent_message.h"
#include "lockstep/launch/launch_options.h"

namespace lockstep::inline v0::launch {

struct LeaderOptions {
  int nodes = 1;                   // hosts with ranks; with min_nodes below, the maximum
  int min_nodes = 0;               // this many suffice; 0: all
  int spare_nodes = 0;             // more than `nodes` may come, and take a lost host's place
  bool numbered = false;           // every host was given its number
  std::vector<std::string> names;  // of the hosts by number, where they are known beforehand
  std::string run_id;
  std::string job;  // its name, unless a joining agent knows one from an earlier generation
  OnFailure on_failure = OnFailure::kStop;
  int max_restarts = 0;  // after failures of ranks
  std::chrono::milliseconds join_timeout{600'000};
  // Below `nodes` hosts, after the last arrival or departure.
  std::chrono::milliseconds last_call{30'000};
  std::chrono::milliseconds beat{1000};          // between messages of an idle agent
  std::chrono::milliseconds silence{8000};       // after which an agent counts as vanished
  std::chrono::milliseconds grace{5000};         // for stopped ranks on every host
  std::chrono::milliseconds stop_grace{25'000};  // the same where nothing failed
  // The number of agents that may lead. With more than one, a generation needs more than half of
  // the previous one's agents, so that no two leaders can form one; the first generation needs an
  // agent at each endpoint.
  int endpoints = 1;
  bool fenced = false;  // a generation starts only once on_claimed() allows it
  // No generation starts earlier: ranks of the previous one may still run, of an agent that led.
  std::chrono::steady_clock::time_point not_before{};
  std::string reason;  // why the first generation is not the job's first; "": it is
  int former_hosts = 0, former_ranks = 0;  // of the previous generation then; 0: unknown
};

// For an agent that gives another one up, having heard nothing from it until `now`: by the returned
// time the silent agent has noticed it as well, and its ranks have been stopped, and killed after
// their grace.
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

  // A message of an agent, itself included. `address` is the agent's, as seen from here; "" for
  // kSelf.
  Sends on_message(Member from, const AgentMessage& message, const std::string& address, Time now);
  // The member's connection is closed, by itself or because it sent nonsense.
  Sends on_lost(Member member, const std::string& how, Time now);
  // The job cannot continue for another reason, given in `what`.
  Sends on_trouble(const std::string& what, Time now);
  Sends on_time(Time now);
  Time next_time() const;
  // When all other agents last got a sign of life from this one.
  Time last_beat() const { return next_beat_ - options_.beat; }
  // Generations up to this one were formed by others.
  void skip_to(int generation) { generation_ = std::max(generation_, generation); }
  // No generation starts earlier.
  void wait_until(Time time) {
    not_before_ = std::max(not_before_, time);
    join_by_ = std::max(join_by_, not_before_ + options_.join_timeout);
  }
  // The generation whose number must be claimed before it starts.
  std::optional<int> to_claim() const;
  // The result of the claim; it fails if `newest` was formed already.
  Sends on_claimed(int generation, bool granted, int newest, Time now);

  // Whether more hosts are needed although there are enough: they are not half of the previous
  // ones.
  bool lacks_majority() const { return meeting() && !why_no_majority().empty(); }
  // No ranks run, and the leader waits for hosts.
  bool meeting() const { return phase_ == Phase::kMeeting; }
  bool over() const { return phase_ == Phase::kOver; }
  // No generation starts earlier: ranks of silent agents may still run.
  Time not_before() const { return not_before_; }
  // The newest; -1: there was none.
  int generation() const { return generation_; }
  // The hosts that have not joined: "hostB", "node 2", or their number.
  std::string missing() const;
  // The number of hosts with ranks, including those that wait for the next generation.
  int joined() const { return hosts_; }
  bool has_number(int number) const;
  // Whether it has joined and is not lost.
  bool present(Member member) const;
  // Whether it waits for signs of life of all agents, this one included, before it decides.
  bool asks() const { return !vacancies_.empty(); }
  // Whether hosts that it does not hear may be enough for a generation: lost ones, spares, and those
  // that have not come.
  bool others_may_begin() const {
    const int unheard = options_.nodes + options_.spare_nodes - hosts_;
    return (restarts_allowed() || has_spares()) && unheard >= min_nodes();
  }
  // Lines for the user about what was decided since the last call.
  std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }

 private:
  enum class Phase { kMeeting, kProposing, kRunning, kStopping, kOver };
  struct Agent {
    std::string id;
    NodeIntroduction introduction;
    uint16_t port = 0;
    int seen = -1, restarts = 0, endpoint = -1;
    int ran_with = 0;
    std::string job;
    Time heard;
    bool counted = false;       // in hosts_
    bool member = false;        // its ranks run, or will with the generation that is being formed
    bool candidate = false;     // it is to take a lost host's place
    bool ready = false;         // it has its plan
    bool started = false;       // it has confirmed that it runs
    bool served = false;        // only services are left there
    bool ended = false;         // all its ranks have ended
    bool finished = false;      // by themselves, with 0
    bool well = false;          // with 0, perhaps because they were told to
    bool past_end = false;      // they need no other rank any more, nor is one of them needed
    std::string gives_up = {};  // why it ends its ranks although none has failed; "": it does not
    bool unfit = false;         // it could not start ranks: it gets no more
    bool said_spare = false;
    bool lost_output = false;
    bool leaving = false;
    std::optional<Time> leaves_at = {};  // if a spare takes its place; otherwise all stop
    std::string why_leaves = {};
    bool lost = false;
    NodePlan plan;
  };
  // A possible cause of the generation's end.
  struct Cause {
    Time time;
    int weight = 2;  // the lower, the likelier it caused others found at the same moment
    Member member = kSelf;
    std::optional<WorkerFailure> worker = {};
    std::string text = {};  // for a cause other than a rank's failure
    int exit_code = 1;
    bool host_gone = false;
    bool asked = false;  // requested by SIGTERM: nothing failed
  };
  // The place of a lost host, whose ranks are waited for by those of the others.
  struct Vacancy {
    NodePlan plan;
    Cause cause;  // of the job's failure, if no other host comes
    Time since;
    Time not_before;        // ranks of the lost host may run until then
    Time until;             // a host is waited for
    bool past_end = false;  // its ranks had seen that all ranks had done their last step
    std::optional<Member> candidate = {};
    bool said = false;  // that a host is waited for
  };

  static void append(Sends& sends, Sends more);
  static void forget_ranks(Agent& agent);
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
  bool replaces() const { return options_.on_failure == OnFailure::kReplace; }
  // Ranks run, or are being stopped.
  bool runs() const { return phase_ == Phase::kRunning || phase_ == Phase::kStopping; }
  bool has_spares() const { return replaces() && options_.spare_nodes > 0; }

  Sends form_if_enough(Time now);
  std::vector<Member> choose_members() const;
  std::string why_no_majority() const;
  Formation formation() const;
  Sends propose(Time now);
  Sends start_if_all_ready(Time now);
  Sends start(Time now);
  Sends on_signal(Member from, const Agent& agent, int signal, Time now);
  Sends on_leave(Member from, const AgentMessage& message, Time now);
  Sends on_ended(Member from, const AgentMessage& message, Time now);
  Sends fail(Cause cause, Time now);
  Sends stop(std::optional<Member> but, Time now, bool asked);
  void begin_to_stop(Time now, bool asked);
  Cause loss_of(Member member, const std::string& how, Time now) const;
  bool gives_place_up(Agent& agent, const AgentMessage& failed) const;
  bool lacks_first_hosts() const;
  bool takes_over() const;
  bool has_enough() const;
  Time begins_at() const;
  Time gives_up_at() const;
  std::chrono::milliseconds last_call() const;
  bool lacks_former_hosts() const;
  AgentMessage stop_order(const Agent& agent) const;
  bool all_well() const;
  void plan_to_take_in(Time now);
  Sends take_newcomers_in(Time now);
  Sends go_on_if_all_ended(Time now);
  Sends meet_again(const std::string& why, Time now);
  // In leader_vacancies.cpp.
  void vacate(Member member, Cause cause, Time now);
  Sends tend_vacancies(Time now);
  Sends let_leave(Time now);
  bool spares_suffice() const;
  Sends offer(Vacancy& vacancy, Time now);
  Sends take_place(Member member, Time now);
  Sends begin_in_place(Member member);
  void withdraw(Member member);
  void close(size_t vacancy);
  void close_vacancies();
  bool all_heard_since(Time time) const;
  bool past_end() const;
  void say_spares();
  static bool is_free(const Agent& agent);
  std::optional<Member> spare_for(const NodePlan& plan) const;
  std::optional<Member> candidate(bool ready) const;
  Sends end(const Cause* cause);
  Cause* first_cause();
  void serve(Agent& agent);
  Sends stop_services_if_all_served();
  Sends to_all(const AgentMessage& message, std::optional<Member> but = {}) const;
  AgentMessage word_to(const Agent& agent) const;
  AgentMessage about(AgentMessage::Kind kind) const;
  static AgentMessage about(AgentMessage::Kind kind, const Agent& agent);
  std::string restart_line() const;
  std::string name_of(const Agent& agent) const;
  std::string ranks_of(const Agent& agent) const;

  LeaderOptions options_;
  Phase phase_ = Phase::kMeeting;
  int generation_ = -1;
  int restarts_ = 0;  // counted restarts
  Time join_by_;
  Time next_beat_;
  Time changed_at_;                 // when a host last joined or left
  Time answer_by_{};                // when the phase's answers are due
  std::optional<Time> take_in_at_;  // for newcomers, while ranks run
  Time not_before_;  // no generation starts earlier: ranks of the previous one may still run
  bool same_hosts_ = false;  // in a meeting: all hosts of the previous generation are still there
  int hosts_ = 0;
  int pending_ = 0;   // members whose answer in this phase is pending
  int unserved_ = 0;  // members with ranks that are no services
  bool services_stopped_ = false;
  bool stop_asked_ = false;  // the reason to stop this generation is no failure
  struct Size {
    int hosts = 0, ranks = 0;
  };
  Size size_, former_size_;     // of this generation, and of the previous one that ran
  std::string reason_;          // why there is a new generation
  bool has_led_ = false;        // a generation
  bool final_ = false;          // the job ends with this generation
  std::set<Member> signalled_;  // agents that were told to stop by a signal
  std::map<Member, Agent> agents_;
  std::map<std::string, Member> by_id_;
  std::vector<Formation> known_;    // with endpoints > 1
  std::vector<Cause> causes_;       // of this generation
  std::vector<Vacancy> vacancies_;  // while ranks run
  bool lost_output_ = false;        // of hosts that ended well and are not known any more
  std::vector<std::string> lines_;
  std::vector<RankSight> sights_;  // from the agents that have ended
  AgentMessage over_;
};

}  // namespace lockstep::inline v0::launch
