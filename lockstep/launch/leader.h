// Leader: what the first agent decides for all agents of a job: when they are complete, which ranks
// each host has, that a failure anywhere stops the job everywhere, when services have nobody left to
// serve, and which failure was the first.
// Pure: it is told the time and returns the messages to send.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/agent_message.h"

namespace lockstep::launch {

struct LeaderOptions {
  int nodes = 1;                   // hosts with ranks
  bool numbered = false;           // every host was given its number
  std::vector<std::string> names;  // of the hosts by number, where they are known beforehand
  std::string run_id;
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds beat{1000};     // between messages of an agent that has nothing to say
  std::chrono::milliseconds silence{8000};  // after which an agent counts as vanished
  std::chrono::milliseconds grace{5000};    // that stopped ranks have on every host
};

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

  bool meeting() const { return phase_ == Phase::kMeeting; }
  bool over() const { return phase_ == Phase::kOver; }
  // "hostB", "node 2", or how many: the hosts that have not joined.
  std::string missing() const;
  int joined() const;  // hosts with ranks
  bool has_number(int number) const;
  // It has joined and is not lost.
  bool present(Member member) const;

 private:
  enum class Phase { kMeeting, kRunning, kStopping, kOver };
  struct Agent {
    NodeIntroduction introduction;
    uint16_t port = 0;
    Time heard;
    bool served = false;  // only services are left there
    bool ended = false;
    bool lost = false;
    NodePlan plan;
  };
  // What may have been the job's end.
  struct Cause {
    Time time;
    int weight = 2;  // the lower, the likelier the cause of others found at the same moment
    Member member = kSelf;
    std::optional<WorkerFailure> worker = {};
    std::string text = {};  // of what is no rank's failure
    int exit_code = 1;
  };

  static void blame(Cause& cause, const WorkerFailure& failure, const std::string& host);
  Sends join(Member from, const AgentMessage& message, const std::string& address, Time now);
  Sends plans(Time now);
  Sends fail(Cause cause, Time now);
  Sends finish_if_all_ended();
  Sends stop_services_if_all_served() const;
  Sends to_all(const AgentMessage& message, std::optional<Member> but = {}) const;
  std::string name_of(const Agent& agent) const;
  std::string ranks_of(const Agent& agent) const;

  LeaderOptions options_;
  Phase phase_ = Phase::kMeeting;
  Time join_by_;
  Time next_beat_;
  Time stop_by_{};
  std::map<Member, Agent> agents_;
  std::vector<Cause> causes_;
  std::vector<RankSight> sights_;  // of the agents that have ended
};

}  // namespace lockstep::launch
