// GenerationsWorld: the agents of a job on a virtual clock: Leaders, Followers and Elections, with
// messages that are lost, duplicated and late, and agents that die and come back. For tests.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/launch/election.h"
#include "lockstep/launch/follower.h"
#include "lockstep/launch/leader.h"

namespace lockstep::inline v0::launch {
namespace generations_world {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = AgentMessage::Kind;
using Time = Leader::Time;

struct Weather {
  double loss = 0, twice = 0;
  int slowest_ms = 1;     // messages take up to this long, and overtake each other
  double crash = 0;       // of an agent, per second
  double comes_back = 1;  // whether it is restarted
  double cut = 0;         // of a host's link, per second
  double rank_dies = 0;   // of a host's ranks, per generation
  double leaves = 0;      // of a host, per second
  double away = 0;        // of the key-value service, per second
  seconds until{0};       // no faults afterwards
};

enum class Lead {
  kFirst,    // the agent on host 0
  kElected,  // the agent that a key-value service elects
  kStandby,  // the agent on host 0, or one of the next hosts, which have endpoints too
};

struct JobOptions {
  Lead lead = Lead::kFirst;
  int hosts = 3, min = 3;
  int spares = 0;     // of the hosts; then those that are lost are replaced
  int endpoints = 1;  // kStandby: more
  OnFailure on_failure = OnFailure::kRestart;
  int max_restarts = 3;
  milliseconds join_timeout = seconds(60), last_call = seconds(3), silence = seconds(8);
  milliseconds work = seconds(20);  // length of a generation
};

// A job whose agents are all simulated, and the key-value service where there is one.
class World {
 public:
  World(JobOptions job, Weather weather, uint64_t seed)
      : job_(job), weather_(weather), random_(seed) {
    cut_.resize(static_cast<size_t>(job.hosts));
    for (int host = 0; host < job.hosts; ++host)
      at(now_ + milliseconds(below(weather.until > seconds(0) ? 5000 : 5)),
         [this, host] { start(host); });
    if (weather_.until > seconds(0)) at(now_ + seconds(1), [this] { storm(); });
  }

  // Runs until nothing happens any more, at most for `bound`. Returns "" for success, otherwise the
  // error.
  std::string run(seconds bound) {
    while (!events_.empty() && trouble_.empty()) {
      Event event = events_.top();
      events_.pop();
      now_ = event.time;
      if (now_ > Time{} + bound) return "it goes on after " + std::to_string(bound.count()) + " s";
      event.action();
    }
    for (const auto& process : processes_) {
      if (trouble_.empty() && process->alive && !process->ended)
        return "the agent on host " + std::to_string(process->host) + " never ends";
    }
    return trouble_;
  }

  milliseconds elapsed() const { return std::chrono::duration_cast<milliseconds>(now_ - Time{}); }
  // The time when the first generation had begun on all hosts.
  milliseconds met() const { return met_; }
  int messages() const { return messages_; }
  int generations() const { return static_cast<int>(plans_.size()); }
  int done() const { return done_; }      // agents that succeeded
  int failed() const { return failed_; }  // agents that failed with a message
  int leaders() const { return leaders_; }
  int moves() const { return moves_; }  // places that another host got while the others ran
  int left() const { return left_; }    // hosts that gave their place up

 private:
  struct Process {
    int host = 0, number = 0;
    bool alive = true, ended = false;
    std::unique_ptr<Leader> leader;  // for an agent that leads, or tries to
    bool introduced = false;         // it leads
    std::unique_ptr<Election> election;
    std::unique_ptr<Follower> follower;
    int leads = -1;  // the process that it is connected to; -1: none
    Leader::Member member = -1;
    Time heard, lost_at, refused_since{};
    bool lost = false, refused = false;
    bool asked = false;  // it would leave
    int ran_with = 0;    // AgentMessage's
    // Kept over connections like in joining.cpp and agent.cpp, including those that were lost
    // before a generation began.
    int seen = -1;
    std::vector<Formation> known;     // too that were lost before a generation began
    Time ranks_until{};               // of the lost agent that led
    std::optional<Time> alone_since;  // since when no agent of an earlier endpoint can be reached
    int runs = -1;                    // the generation that runs; -1: none
    int place = -1;                   // of the host, in that case
    int of = -1;                      // the process that made its plan
    uint64_t life = 0;                // of its ranks
  };
  struct Event {
    Time time;
    uint64_t order;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return std::pair(time, order) > std::pair(other.time, other.order);
    }
  };

  void at(Time time, std::function<void()> action) {
    events_.push({time, next_event_++, std::move(action)});
  }
  int below(int n) { return n < 1 ? 0 : std::uniform_int_distribution<int>(0, n - 1)(random_); }
  bool chance(double p) {
    return p > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < p;
  }
  int nodes() const { return job_.hosts - job_.spares; }
  bool stormy() const { return now_ < Time{} + weather_.until; }
  Process& process(int number) { return *processes_[static_cast<size_t>(number)]; }

  // The faults of the storm.
  void storm() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      Process& p = *processes_[i];
      if (!p.alive || p.ended) continue;
      if (chance(weather_.crash)) {
        // Of its process alone, or of its host, which takes longer to begin anew than its peers to
        // give it up.
        const bool of_host = chance(0.5);
        if (!of_host) close_all(p);
        p.alive = false;
        const milliseconds away = (of_host ? 2 * job_.silence : milliseconds(0));
        if (chance(weather_.comes_back))
          at(now_ + away + milliseconds(below(20'000)), [this, host = p.host] { start(host); });
      } else if (!p.leader && p.leads >= 0 && p.follower && chance(weather_.leaves)) {
        leave(p);
      }
    }
    for (auto&& cut : cut_) {
      if (!cut && chance(weather_.cut)) {
        cut = true;
        const auto host = static_cast<size_t>(&cut - cut_.data());
        at(now_ + milliseconds(below(30'000)), [this, host] { cut_[host] = false; });
      }
    }
    if (!away_ && chance(weather_.away)) {
      away_ = true;
      at(now_ + milliseconds(below(20'000)), [this] { come_back(); });
    }
    if (stormy()) return at(now_ + seconds(1), [this] { storm(); });
    std::fill(cut_.begin(), cut_.end(), false);
    come_back();
  }
  // SIGTERM to an agent.
  void leave(Process& p) {
    AgentMessage leave;
    leave.kind = Kind::kLeave;
    leave.text = "SIGTERM";
    if (job_.spares == 0 || p.runs < 0) {
      say(p, p.follower->tell(leave));
      return end(p, true);
    }
    if (std::exchange(p.asked, true)) return;
    say(p, p.follower->tell(leave));
    at(now_ + seconds(3), [this, n = p.number, life = p.life] {
      Process& own = process(n);
      if (!own.alive || own.ended || own.life != life || own.leads < 0) return;
      AgentMessage signal;
      signal.kind = Kind::kSignal;
      signal.number = 15;
      say(own, own.follower->tell(signal));
      stop_ranks(own);
    });
  }
  void come_back() {
    if (!away_) return;
    away_ = false;
    keys_.lease_until = now_ + job_.silence;  // as etcd does after a restart
  }

  // Starts an agent's process, unless there is one on that host.
  void start(int host) {
    if (const auto it = on_host_.find(host); it != on_host_.end()) {
      const Process& other = process(it->second);
      if (other.alive && !other.ended) return;
    }
    on_host_[host] = static_cast<int>(processes_.size());
    auto made = std::make_unique<Process>();
    made->host = host;
    made->number = static_cast<int>(processes_.size());
    made->heard = now_;
    processes_.push_back(std::move(made));
    Process& p = *processes_.back();
    p.lost_at = now_;
    if (job_.lead == Lead::kElected)
      p.election = std::make_unique<Election>(
          Election::Options{.lease = job_.silence, .give_up = job_.join_timeout}, now_);
    seek(p.number);
  }

  // An agent's steps until it leads or has joined, as in peers.cpp.
  void seek(int number) {
    Process& p = process(number);
    if (!p.alive || p.ended || p.leads >= 0) return;
    if (job_.lead == Lead::kFirst && p.host == 0) return lead(p);
    if (job_.lead == Lead::kElected && stands(p)) return lead(p);
    if (connect(p)) return tick(number);
    if (job_.lead == Lead::kStandby && p.host < job_.endpoints) {
      if (!p.alone_since) p.alone_since = now_;
      if (p.host == 0 || (!p.known.empty() && now_ >= *p.alone_since + seconds(3))) return lead(p);
    }
    const seconds patience(job_.lead == Lead::kStandby ? 10 : 3);
    const bool gone = p.lost && p.refused && now_ >= p.refused_since + patience;
    if (gone || now_ >= p.lost_at + job_.join_timeout) return end(p, false);
    at(now_ + milliseconds(200), [this, number] { seek(number); });
  }

  bool stands(Process& p) {
    ask(p);
    return p.election->hopeless().empty() && p.election->vacant();
  }

  void lead(Process& p) {
    LeaderOptions options;
    options.nodes = nodes();
    options.min_nodes = job_.min;
    options.spare_nodes = job_.spares;
    options.on_failure = job_.on_failure;
    options.max_restarts = job_.max_restarts;
    options.join_timeout = job_.join_timeout;
    options.last_call = job_.last_call;
    options.silence = job_.silence;
    options.fenced = p.election != nullptr;
    options.endpoints = job_.endpoints;
    options.not_before = p.ranks_until;
    p.alone_since.reset();
    p.leader = std::make_unique<Leader>(options, now_);
    p.leads = p.number;
    p.member = Leader::kSelf;
    p.introduced = !p.election;
    if (p.election) p.election->stand(std::to_string(p.number), now_);
    if (p.introduced) {
      ++leaders_;
      introduce(p);
    }
    tick(p.number);
  }

  void step_down(Process& p) {
    p.seen = std::max(p.seen, p.leader->generation());
    close_all(p);
    retired_.push_back(std::move(p.leader));
    if (p.introduced) p.ran_with = 0;
    p.introduced = false;
    lose(p);
  }

  bool leads(const Process& p) const {
    return p.alive && !p.ended && p.leader && p.introduced && !p.leader->over();
  }

  // Of two agents that would lead, the one at the earlier endpoint stays, unless the other's
  // generation is newer.
  void look_at_other_endpoints(Process& p) {
    if (job_.lead != Lead::kStandby || !p.leader || !p.leader->meeting()) return;
    for (int host = 0; host < job_.endpoints; ++host) {
      const auto it = on_host_.find(host);
      if (host == p.host || it == on_host_.end() || !reachable(p.host, host)) continue;
      const Process& other = process(it->second);
      if (!leads(other)) continue;
      if (host < p.host || (!other.leader->meeting() && other.runs > p.seen)) return step_down(p);
    }
  }

  // LeadingAgent's part in its election.
  void hold(Process& p) {
    if (!p.election) return;
    ask(p);
    if (!p.leader || p.leader->over()) return;
    if (!p.election->hopeless().empty() || p.election->standing() == Election::Standing::kDeposed) {
      return step_down(p);
    }
    if (p.election->standing() != Election::Standing::kLeading) return;
    if (p.leader->others_may_begin() && p.election->overdue(now_)) return step_down(p);
    if (!p.introduced) {
      ++leaders_;
      p.introduced = true;
      p.leader->skip_to(p.election->newest());
      const auto begun = newest_.find(p.number);
      if (p.election->newest() > (begun == newest_.end() ? -1 : begun->second))
        p.leader->wait_until(ranks_gone_by(now_, seconds(1), kGrace));
      introduce(p);
    }
    if (const auto generation = p.leader->to_claim()) {
      if (const auto granted = p.election->take_claimed(*generation)) {
        dispatch(p, p.leader->on_claimed(*generation, *granted, p.election->newest(), now_));
      } else {
        p.election->claim(*generation, now_);
      }
    }
    ask(p);
  }

  // Sends the next request to the service; the request or its answer may be lost.
  void ask(Process& p) {
    const auto request = p.election->next(now_);
    if (!request) return;
    const auto answer = [this, n = p.number](const Election::Answer& answer) {
      Process& own = process(n);
      if (!own.alive || own.ended) return;
      own.election->on_answer(answer, now_);
      hold(own);
    };
    const auto silence = [this, answer] {
      at(now_ + seconds(4), [answer] { answer({.error = "it is away"}); });
    };
    if (stormy() && chance(weather_.loss)) return silence();
    const bool answer_lost = stormy() && chance(weather_.loss);
    at(now_ + delay(), [=, this, host = p.host, asked = *request] {
      if (away_ || cut_[static_cast<size_t>(host)]) return silence();
      const Election::Answer said = obey(asked);
      if (answer_lost) return silence();
      at(now_ + delay(), [answer, said] { answer(said); });
    });
  }

  // The key-value service.
  Election::Answer obey(const Election::Request& asked) {
    using Ask = Election::Request::Kind;
    if (!keys_.leader.empty() && now_ >= keys_.lease_until) keys_.leader.clear();
    Election::Answer answer{.reached = true};
    const bool own = !keys_.leader.empty() && keys_.revision == asked.revision;
    switch (asked.kind) {
      case Ask::kLook:
        break;
      case Ask::kCampaign:
        if (keys_.leader.empty()) {
          keys_.leader = asked.value;
          keys_.lease_until = now_ + job_.silence;
          keys_.revision = keys_.lease = ++revision_;
        }
        answer.granted = keys_.leader == asked.value;
        answer.lease = keys_.lease;
        break;
      case Ask::kKeepAlive:
        answer.granted = !keys_.leader.empty() && keys_.lease == asked.lease;
        if (answer.granted) keys_.lease_until = now_ + job_.silence;
        break;
      case Ask::kClaim:
        if (own && keys_.generation < asked.generation) {
          keys_.generation = asked.generation;
          keys_.by = asked.revision;
        }
        answer.granted = keys_.generation == asked.generation && keys_.by == asked.revision;
        break;
      case Ask::kResign:
        if (own) {
          keys_ = {};
          formed_by_.clear();
        }
        answer.granted = true;
        break;
    }
    answer.leader = keys_.leader;
    answer.revision = keys_.leader.empty() ? 0 : keys_.revision;
    answer.newest = keys_.generation;
    return answer;
  }

  void introduce(Process& p) {
    AgentMessage join;
    join.kind = Kind::kJoin;
    join.agent = "agent" + std::to_string(p.number);
    join.introduction = {-1, "host" + std::to_string(p.host), "", p.number, 2};
    join.nodes = nodes();
    join.min_nodes = job_.min;
    join.seen = p.seen;
    join.known = p.known;
    join.ran_with = p.ran_with;
    join.old_ranks_for =
        std::max(milliseconds(0), std::chrono::ceil<milliseconds>(p.ranks_until - now_));
    join.endpoint = p.host < job_.endpoints && job_.endpoints > 1 ? p.host : -1;
    p.follower = std::make_unique<Follower>(join);
    say(p, p.follower->beat());
  }

  bool reachable(int a, int b) const {
    return a == b || (!cut_[static_cast<size_t>(a)] && !cut_[static_cast<size_t>(b)]);
  }

  // The process that leads, as far as p knows.
  const Process* found(const Process& p) {
    if (job_.lead == Lead::kElected) {
      const std::string& leader = p.election->leader();
      return leader.empty() ? nullptr : &process(std::stoi(leader));
    }
    const Process* first = nullptr;
    for (int host = 0; host < job_.endpoints; ++host) {
      const auto it = on_host_.find(host);
      if (it == on_host_.end()) continue;
      const Process& other = process(it->second);
      if (first == nullptr || (!leads(*first) || !reachable(p.host, first->host))) first = &other;
      if (leads(*first) && reachable(p.host, first->host)) return first;
    }
    return first;
  }

  bool connect(Process& p) {
    const Process* first = found(p);
    const bool listens = first != nullptr && leads(*first);
    const bool answers = reachable(p.host, first == nullptr ? 0 : first->host);
    if (listens && answers) {
      p.leads = first->number;
      p.member = next_member_++;
      members_[p.member] = p.number;
      p.heard = now_;
      p.refused = false;
      p.alone_since.reset();
      introduce(p);
      return true;
    }
    if (answers && !p.refused) p.refused_since = now_;
    p.refused = answers && !p.election;
    return false;
  }

  // Sends a message from an agent to its leader.
  void say(Process& p, const AgentMessage& message) {
    if (p.member == Leader::kSelf) return hear_leader(p.leads, Leader::kSelf, message);
    ++messages_;
    carry(p.host, process(p.leads).host, [this, to = p.leads, member = p.member, message] {
      Process& first = process(to);
      if (first.alive && !first.ended && first.leader && first.introduced)
        hear_leader(to, member, message);
    });
  }

  void hear_leader(int number, Leader::Member from, const AgentMessage& message) {
    Process& p = process(number);
    // LeadingAgent closes the connection of an agent that it has given up.
    if (from != Leader::kSelf && message.kind != Kind::kJoin && !p.leader->present(from))
      return close(p, from);
    dispatch(p, p.leader->on_message(from, message, "10.0.0." + std::to_string(from), now_));
  }

  // The connections of a process that has ended are closed by its system.
  void close_all(const Process& p) {
    if (p.leader) {
      for (const auto& [member, number] : members_)
        if (process(number).leads == p.number && process(number).member == member) close(p, member);
    } else if (p.leads >= 0) {
      carry(p.host, process(p.leads).host, [this, to = p.leads, member = p.member] {
        Process& first = process(to);
        if (first.alive && !first.ended && first.leader && first.introduced)
          dispatch(first, first.leader->on_lost(member, "its connection was closed", now_));
      });
    }
  }

  // Closes the connection of a member.
  void close(const Process& leader, Leader::Member member) {
    carry(leader.host, process(members_.at(member)).host, [this, member] {
      Process& other = process(members_.at(member));
      if (other.alive && !other.ended && other.member == member && other.leads >= 0) lose(other);
    });
  }

  void dispatch(Process& p, const Leader::Sends& sends) {
    for (const Leader::Send& send : sends) {
      if (send.to == Leader::kSelf) {
        take(p, send.message);
        continue;
      }
      ++messages_;
      const int to = members_.at(send.to);
      carry(p.host, process(to).host, [this, to, member = send.to, message = send.message] {
        Process& other = process(to);
        if (!other.alive || other.ended || other.member != member || other.leads < 0) return;
        other.heard = now_;
        take(other, message);
      });
    }
    if (p.leader->over() && over_.insert(p.number).second) {
      if (p.election) p.election->resign(now_);
      // It stays until the others have heard of it.
      at(now_ + seconds(10), [this, n = p.number] { process(n).ended = true; });
    }
  }

  milliseconds delay() { return milliseconds(1 + below(stormy() ? weather_.slowest_ms : 1)); }

  // Over the links of two hosts.
  void carry(int from, int to, const std::function<void()>& deliver) {
    if (!reachable(from, to) || (stormy() && chance(weather_.loss))) return;
    const int times = stormy() && chance(weather_.twice) ? 2 : 1;
    for (int i = 0; i < times; ++i) at(now_ + delay(), deliver);
  }

  void take(Process& p, const AgentMessage& message) {
    const Follower::Step step = p.follower->on_message(message);
    if (p.follower->seen() > p.seen) {
      planned_[{p.leads, p.follower->seen()}].insert(p.number);
      note_job(p.leads, message);
    }
    p.seen = p.follower->seen();
    p.known = p.follower->known();
    for (const AgentMessage& answer : step.say) say(p, answer);
    for (const AgentMessage& heard : step.hear) hear(p, heard);
    if (!p.follower->refusal().empty() && !p.ended) end(p, false);
  }

  // Jobs that begin from nothing, because all former leaders have forgotten theirs, are other jobs.
  void note_job(int leads, const AgentMessage& plan) {
    const std::pair<int, int> key(leads, plan.plan.generation);
    if (jobs_.contains(key)) return;
    int job = static_cast<int>(jobs_.size());
    for (const Formation& formation : plan.known) {
      const auto it = jobs_.find({std::stoi(formation.by.substr(5)), formation.generation});
      if (it != jobs_.end()) job = it->second;
      if (formation.begun) break;
    }
    jobs_[key] = job;
  }

  void hear(Process& p, const AgentMessage& message) {
    if (message.kind == Kind::kStart) {
      begin(p, message.plan);
    } else if (message.kind == Kind::kWait) {
      p.ran_with = 0;
    } else if (message.kind == Kind::kStop) {
      stop_ranks(p);
    } else if (message.kind == Kind::kLeave && p.asked) {
      ++left_;
      ranks_ended(p, false);
      end(p, true);
    } else if (message.kind == Kind::kOver && !p.ended) {
      if (p.runs >= 0 && message.exit_code == 0) fail("the job is over while ranks run");
      (message.exit_code == 0 ? done_ : failed_) += 1;
      p.runs = -1;
      if (!p.leader) p.ended = true;
    }
  }

  void begin(Process& p, const NodePlan& plan) {
    if (p.runs >= 0) fail("a generation begins while another runs");
    if (plan.joins < 0) {
      check_that_no_older_one_runs(plan.generation);
      check_plan(p, plan);
    } else {
      check_move(p, plan);
    }
    p.runs = plan.generation;
    p.ran_with = plan.nodes;
    p.place = plan.node_rank;
    p.of = p.leads;
    const uint64_t life = ++p.life;
    const bool dies = stormy() && chance(weather_.rank_dies);
    const milliseconds lasts =
        dies ? milliseconds(below(static_cast<int>(job_.work.count()))) : job_.work;
    at(now_ + lasts + milliseconds(below(20)), [this, n = p.number, life, dies] {
      Process& own = process(n);
      if (!own.alive || own.ended || own.life != life || own.runs < 0) return;
      if (dies) {
        AgentMessage failed;
        failed.kind = Kind::kFailed;
        failed.failure.emplace().signal = 9;
        tell(own, failed);
      }
      ranks_ended(own, !dies);
    });
  }

  void tell(Process& p, const AgentMessage& message) {
    const AgentMessage said = p.follower->tell(message);
    if (p.leads >= 0) say(p, said);
  }

  void ranks_ended(Process& p, bool finished) {
    if (p.runs < 0) return;
    p.runs = -1;
    ++p.life;
    AgentMessage ended;
    ended.kind = Kind::kEnded;
    ended.finished = finished;
    tell(p, ended);
  }

  void stop_ranks(Process& p) {
    if (p.runs < 0) return;
    at(now_ + milliseconds(1 + below(2000)), [this, n = p.number, life = p.life] {
      Process& own = process(n);
      if (own.alive && !own.ended && own.life == life) ranks_ended(own, false);
    });
  }

  void lose(Process& p, bool silent = false) {
    p.leads = -1;
    p.lost_at = now_;
    p.lost = true;
    p.ranks_until = silent || p.election ? ranks_gone_by(now_, seconds(1), kGrace) : Time{};
    ++p.life;
    if (job_.on_failure != OnFailure::kRestart && job_.spares == 0) return end(p, false);
    if (p.election) p.election->look(now_);
    // Its ranks are stopped before it looks for another leader. It checks the time every second.
    at(now_ + milliseconds(below(static_cast<int>((kGrace - seconds(1)).count()))),
       [this, n = p.number] {
         process(n).runs = -1;
         seek(n);
       });
  }

  void end(Process& p, bool well) {
    p.ended = true;
    p.runs = -1;
    (well ? done_ : failed_) += 1;
  }

  void tick(int number) {
    Process& p = process(number);
    if (!p.alive || p.ended) return;
    if (p.leader) {
      if (p.introduced && p.leader->asks()) say(p, p.follower->beat());
      if (p.introduced) dispatch(p, p.leader->on_time(now_));
      hold(p);
      look_at_other_endpoints(p);
      if (!p.leader) return;
      Time next = p.leader->over() ? now_ + seconds(1) : p.leader->next_time();
      if (!p.introduced) next = now_ + seconds(1);
      if (p.election)
        next = std::min(next, std::max(p.election->next_time(), now_ + milliseconds(50)));
      if (p.leader->over() && !p.election) return;
      at(std::max(next, now_ + milliseconds(1)), [this, number, of = p.leader.get()] {
        if (process(number).leader.get() == of) tick(number);
      });
      return;
    }
    if (p.leads < 0) return;
    if (now_ >= p.heard + job_.silence) return lose(p, /*silent=*/true);
    say(p, p.follower->beat());
    at(now_ + seconds(1), [this, number, member = p.member] {
      if (process(number).member == member) tick(number);
    });
  }

  // Whether two places fit each other, and the second one its own ranks.
  static bool of_one_job(const NodePlan& other, const NodePlan& plan) {
    return other.nodes == plan.nodes && other.world_size == plan.world_size &&
           other.restarts == plan.restarts && other.master.host == plan.master.host &&
           plan.world_size == 2 * plan.nodes && plan.first_rank == 2 * plan.node_rank;
  }

  // An agent that runs a generation has the plan that all have, and its own part of the ranks.
  void check_plan(const Process& p, const NodePlan& plan) {
    Generation& begun = plans_[{p.leads, plan.generation}];
    if (begun.hosts.empty()) begun.plan = plan;
    if (plans_.size() == 1) first_hosts_ = plan.nodes;
    if (!of_one_job(begun.plan, plan))
      fail("two plans of generation " + std::to_string(plan.generation));
    if (!begun.ranks.insert(plan.node_rank).second || plan.node_rank >= plan.nodes)
      fail("two hosts have the same ranks in generation " + std::to_string(plan.generation));
    if (!begun.hosts.insert(p.number).second) fail("a generation begins twice on a host");
    if (plan.nodes < job_.min || plan.nodes > job_.hosts)
      fail("a generation of " + std::to_string(plan.nodes) + " hosts");
    if (static_cast<int>(planned_[{p.leads, plan.generation}].size()) != plan.nodes)
      fail("a generation begins that not all of its hosts have a plan of");
    if (static_cast<int>(begun.hosts.size()) == first_hosts_ && met_ == milliseconds(0))
      met_ = elapsed();
    if (const auto it = newest_.find(p.number);
        it != newest_.end() && it->second >= plan.generation)
      fail("an older generation begins");
    newest_[p.number] = plan.generation;
    const int job = job_.lead == Lead::kStandby ? jobs_.at({p.leads, plan.generation}) : 0;
    if (job_.lead != Lead::kFirst &&
        formed_by_.emplace(std::pair(job, plan.generation), p.leads).first->second != p.leads)
      fail("two leaders have formed generation " + std::to_string(plan.generation));
    if (leaders_ == 1 || job_.lead == Lead::kStandby) return;
    // No agent runs that generation as another living leader has formed it.
    for (const auto& other : processes_) {
      if (other->runs != plan.generation || !other->alive || other->ended) continue;
      if (other->of != p.leads && process(other->of).alive && !process(other->of).ended)
        fail("two leaders have formed generation " + std::to_string(plan.generation));
    }
  }

  // An agent that gets a lost host's place has the plan of the others, and the place is free.
  void check_move(const Process& p, const NodePlan& plan) {
    ++moves_;
    const auto begun = plans_.find({p.leads, plan.joins});
    if (begun == plans_.end() || plan.joins >= plan.generation)
      return fail("a host joins generation " + std::to_string(plan.joins) + ", which never began");
    if (!of_one_job(begun->second.plan, plan) || plan.local_ranks != 2 || plan.moves < 1)
      fail("another plan for a place of generation " + std::to_string(plan.joins));
    if (!lives_.insert({p.leads, plan.node_rank, plan.generation}).second)
      fail("two lives of one place have one number");
    newest_[p.number] = plan.generation;
    if (late_news()) return;
    for (const auto& one : processes_) {
      if (one->alive && !one->ended && one->runs >= 0 && one->of == p.leads &&
          one->place == plan.node_rank)
        fail("ranks of place " + std::to_string(plan.node_rank) + " run on hosts " +
             std::to_string(one->host) + " and " + std::to_string(p.host));
    }
  }

  // Whether an agent may learn much later than its leader that it was given up, since single
  // messages are lost.
  bool late_news() const { return weather_.loss > 0 || weather_.slowest_ms > 1; }

  // If one end of a link has not heard from the other, the reverse holds too, as over TCP.
  void check_that_no_older_one_runs(int generation) {
    if (generation == 0 || late_news()) return;
    if (job_.lead == Lead::kStandby) return;  // jobs that begin from nothing are others
    for (const auto& other : processes_) {
      if (other->alive && !other->ended && other->runs >= 0 && other->runs < generation)
        fail("ranks of generation " + std::to_string(other->runs) + " run on host " +
             std::to_string(other->host) + " when generation " + std::to_string(generation) +
             " begins");
    }
  }

  void fail(const std::string& what) {
    if (trouble_.empty()) trouble_ = what + ", after " + std::to_string(elapsed().count()) + " ms";
  }

  static constexpr milliseconds kGrace{5000};  // LeaderOptions'

  const JobOptions job_;
  const Weather weather_;
  std::mt19937_64 random_;
  Time now_{};
  std::priority_queue<Event> events_;
  uint64_t next_event_ = 0;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<char> cut_;
  struct Keys {
    std::string leader;
    Time lease_until{};
    int64_t lease = 0, revision = 0;
    int generation = -1;
    int64_t by = 0;
  };
  Keys keys_;  // the service's keys
  int64_t revision_ = 0;
  bool away_ = false;
  std::map<std::pair<int, int>, int> formed_by_;  // the leader, by job and generation
  std::map<std::pair<int, int>, int> jobs_;       // by leader and generation
  std::vector<std::unique_ptr<Leader>> retired_;
  std::map<Leader::Member, int> members_;
  Leader::Member next_member_ = 1;
  struct Generation {
    NodePlan plan;  // of the first to begin
    std::set<int> hosts, ranks;
  };
  std::map<std::pair<int, int>, Generation> plans_;  // by leader and number
  std::map<std::pair<int, int>, std::set<int>> planned_;
  std::set<std::tuple<int, int, int>> lives_;  // by leader, place and number
  std::map<int, int> on_host_;
  std::map<int, int> newest_;
  std::set<int> over_;
  std::string trouble_;
  milliseconds met_{0};
  int messages_ = 0, done_ = 0, failed_ = 0, leaders_ = 0, first_hosts_ = 0, moves_ = 0, left_ = 0;
};

}  // namespace generations_world
}  // namespace lockstep::inline v0::launch
