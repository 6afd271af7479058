// Generations on a virtual clock: the Leader and the Followers of a job, with messages that are
// lost, doubled and late, and agents that die and come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/launch/follower.h"
#include "lockstep/launch/leader.h"

namespace lockstep::launch {
namespace generations_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = AgentMessage::Kind;
using Time = Leader::Time;

struct Weather {
  double loss = 0, twice = 0;
  int slowest_ms = 1;     // messages take up to so long, and overtake each other
  double crash = 0;       // of an agent, a second
  double comes_back = 1;  // whether it is started again
  double cut = 0;         // of a host's link, a second
  double rank_dies = 0;   // of a host's ranks, a generation
  double leaves = 0;      // of a host, a second
  seconds until{0};       // then all is quiet
};

struct JobOptions {
  int hosts = 3, min = 3;
  OnFailure on_failure = OnFailure::kRestart;
  int max_restarts = 3;
  milliseconds join_timeout = seconds(60), last_call = seconds(3), silence = seconds(8);
  milliseconds work = seconds(20);  // of a generation
};

// A job whose agents are all simulated; the one on host 0 leads.
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

  // Until nothing happens any more, at most so long. "": all was well; else what was not.
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
  // When the first generation had begun everywhere.
  milliseconds met() const { return met_; }
  int messages() const { return messages_; }
  int generations() const { return static_cast<int>(plans_.size()); }
  int done() const { return done_; }      // agents that ended well
  int failed() const { return failed_; }  // and with a message
  int leaders() const { return leaders_; }

 private:
  struct Process {
    int host = 0, number = 0;
    bool alive = true, ended = false;
    std::unique_ptr<Leader> leader;  // of the one on host 0
    std::unique_ptr<Follower> follower;
    int leads = -1;  // the process that it is connected to; -1: none
    Leader::Member member = -1;
    Time heard, lost_at, refused_since{};
    bool lost = false, refused = false;
    int seen = -1;
    int runs = -1;      // a generation; -1: none
    int of = -1;        // the process that made its plan
    uint64_t life = 0;  // of its ranks
    Time tick_at = Time::max();
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
  bool stormy() const { return now_ < Time{} + weather_.until; }
  Process& process(int number) { return *processes_[static_cast<size_t>(number)]; }

  // What goes wrong meanwhile.
  void storm() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      Process& p = *processes_[i];
      if (!p.alive || p.ended) continue;
      if (chance(weather_.crash)) {
        p.alive = false;
        if (chance(weather_.comes_back))
          at(now_ + milliseconds(below(20'000)), [this, host = p.host] { start(host); });
      } else if (!p.leader && p.leads >= 0 && chance(weather_.leaves)) {
        AgentMessage leave;
        leave.kind = Kind::kLeave;
        leave.text = "SIGTERM";
        say(p, p.follower->tell(leave));
        end(p, true);
      }
    }
    for (auto&& cut : cut_) {
      if (!cut && chance(weather_.cut)) {
        cut = true;
        const auto host = static_cast<size_t>(&cut - cut_.data());
        at(now_ + milliseconds(below(30'000)), [this, host] { cut_[host] = false; });
      }
    }
    if (stormy()) at(now_ + seconds(1), [this] { storm(); });
    if (!stormy()) std::fill(cut_.begin(), cut_.end(), false);
  }

  // An agent's process, unless there is one on that host.
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
    if (host == 0) {
      ++leaders_;
      LeaderOptions options;
      options.nodes = job_.hosts;
      options.min_nodes = job_.min;
      options.on_failure = job_.on_failure;
      options.max_restarts = job_.max_restarts;
      options.join_timeout = job_.join_timeout;
      options.last_call = job_.last_call;
      options.silence = job_.silence;
      p.leader = std::make_unique<Leader>(options, now_);
      p.leads = p.number;
      p.member = Leader::kSelf;
      introduce(p);
      tick(p.number);
    } else {
      p.lost_at = now_;
      at(now_, [this, n = p.number] { connect(n); });
    }
  }

  void introduce(Process& p) {
    AgentMessage join;
    join.kind = Kind::kJoin;
    join.agent = "agent" + std::to_string(p.number);
    join.introduction = {-1, "host" + std::to_string(p.host), "", p.number, 2};
    join.nodes = job_.hosts;
    join.min_nodes = job_.min;
    join.seen = p.seen;
    p.follower = std::make_unique<Follower>(join);
    say(p, p.follower->beat());
  }

  bool reachable(int host) const { return !cut_[static_cast<size_t>(host)] && !cut_[0]; }

  // What JoinedAgent does until the first agent has answered.
  void connect(int number) {
    Process& p = process(number);
    if (!p.alive || p.ended || p.leads >= 0) return;
    if (reachable(p.host)) {
      const auto first = on_host_.find(0);
      const Process* other = first == on_host_.end() ? nullptr : &process(first->second);
      if (other != nullptr && other->alive && !other->ended && !other->leader->over()) {
        p.leads = other->number;
        p.member = next_member_++;
        members_[p.member] = number;
        p.heard = now_;
        p.refused = false;
        introduce(p);
        tick(number);
        return;
      }
      if (!p.refused) p.refused_since = now_;
      p.refused = true;
    } else {
      p.refused = false;
    }
    const bool gone = p.lost && p.refused && now_ >= p.refused_since + seconds(3);
    if (gone || now_ >= p.lost_at + job_.join_timeout) return end(p, false);
    at(now_ + milliseconds(200), [this, number] { connect(number); });
  }

  // From an agent to the one that leads it.
  void say(Process& p, const AgentMessage& message) {
    if (p.member == Leader::kSelf) return hear_leader(p.leads, Leader::kSelf, message);
    ++messages_;
    carry(p.host, [this, to = p.leads, member = p.member, message] {
      if (process(to).alive && !process(to).ended) hear_leader(to, member, message);
    });
  }

  void hear_leader(int number, Leader::Member from, const AgentMessage& message) {
    Process& p = process(number);
    dispatch(p, p.leader->on_message(from, message, "10.0.0." + std::to_string(from), now_));
  }

  void dispatch(Process& p, const Leader::Sends& sends) {
    for (const Leader::Send& send : sends) {
      if (send.to == Leader::kSelf) {
        take(p, send.message);
        continue;
      }
      ++messages_;
      const int to = members_.at(send.to);
      carry(process(to).host, [this, to, member = send.to, message = send.message] {
        Process& other = process(to);
        if (!other.alive || other.ended || other.member != member || other.leads < 0) return;
        other.heard = now_;
        take(other, message);
      });
    }
    if (p.leader->over() && over_.insert(p.number).second) {
      // It stays for the others to hear of it.
      at(now_ + seconds(10), [this, n = p.number] { process(n).ended = true; });
    }
  }

  // Over the link between host 0 and another.
  void carry(int host, std::function<void()> deliver) {
    if (!reachable(host) || (stormy() && chance(weather_.loss))) return;
    const int times = stormy() && chance(weather_.twice) ? 2 : 1;
    for (int i = 0; i < times; ++i)
      at(now_ + milliseconds(1 + below(stormy() ? weather_.slowest_ms : 1)), deliver);
  }

  void take(Process& p, const AgentMessage& message) {
    const Follower::Step step = p.follower->on_message(message);
    if (p.follower->seen() > p.seen) planned_[{p.leads, p.follower->seen()}].insert(p.number);
    p.seen = p.follower->seen();
    for (const AgentMessage& answer : step.say) say(p, answer);
    for (const AgentMessage& heard : step.hear) hear(p, heard);
    if (!p.follower->refusal().empty() && !p.ended) end(p, false);
  }

  void hear(Process& p, const AgentMessage& message) {
    if (message.kind == Kind::kStart) {
      begin(p, message.plan);
    } else if (message.kind == Kind::kStop) {
      stop_ranks(p);
    } else if (message.kind == Kind::kOver && !p.ended) {
      if (p.runs >= 0 && message.exit_code == 0) fail("the job is over while ranks run");
      (message.exit_code == 0 ? done_ : failed_) += 1;
      p.runs = -1;
      if (!p.leader) p.ended = true;
    }
  }

  void begin(Process& p, const NodePlan& plan) {
    if (p.runs >= 0) fail("a generation begins while another runs");
    check_plan(p, plan);
    p.runs = plan.generation;
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

  void lose(Process& p) {
    p.leads = -1;
    p.lost_at = now_;
    p.lost = true;
    // Its ranks are stopped before it looks for another.
    p.runs = -1;
    ++p.life;
    if (job_.on_failure != OnFailure::kRestart) return end(p, false);
    at(now_ + milliseconds(below(2000)), [this, n = p.number] { connect(n); });
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
      dispatch(p, p.leader->on_time(now_));
      if (!p.leader->over())
        at(std::max(p.leader->next_time(), now_ + milliseconds(1)),
           [this, number] { tick(number); });
      return;
    }
    if (p.leads < 0) return;
    if (now_ >= p.heard + job_.silence) return lose(p);
    say(p, p.follower->beat());
    at(now_ + seconds(1), [this, number, member = p.member] {
      if (process(number).member == member) tick(number);
    });
  }

  // Who runs a generation has the plan that all have, and its own part of the ranks.
  void check_plan(const Process& p, const NodePlan& plan) {
    Generation& begun = plans_[{p.leads, plan.generation}];
    if (begun.hosts.empty()) begun.plan = plan;
    if (plans_.size() == 1) first_hosts_ = plan.nodes;
    const NodePlan& other = begun.plan;
    if (other.nodes != plan.nodes || other.world_size != plan.world_size ||
        other.restarts != plan.restarts || other.master.host != plan.master.host ||
        plan.world_size != 2 * plan.nodes || plan.first_rank != 2 * plan.node_rank)
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
    if (leaders_ == 1) return;
    // Nobody runs that generation as another living leader has formed it.
    for (const auto& other : processes_) {
      if (other->runs != plan.generation || !other->alive || other->ended) continue;
      if (other->of != p.leads && process(other->of).alive && !process(other->of).ended)
        fail("two leaders have formed generation " + std::to_string(plan.generation));
    }
  }

  void fail(const std::string& what) {
    if (trouble_.empty()) trouble_ = what + ", after " + std::to_string(elapsed().count()) + " ms";
  }

  const JobOptions job_;
  const Weather weather_;
  std::mt19937_64 random_;
  Time now_{};
  std::priority_queue<Event> events_;
  uint64_t next_event_ = 0;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<char> cut_;
  std::map<Leader::Member, int> members_;
  Leader::Member next_member_ = 1;
  struct Generation {
    NodePlan plan;  // of the first to begin
    std::set<int> hosts, ranks;
  };
  std::map<std::pair<int, int>, Generation> plans_;  // by who leads, and number
  std::map<std::pair<int, int>, std::set<int>> planned_;
  std::map<int, int> on_host_;
  std::map<int, int> newest_;
  std::set<int> over_;
  std::string trouble_;
  milliseconds met_{0};
  int messages_ = 0, done_ = 0, failed_ = 0, leaders_ = 0, first_hosts_ = 0;
};

bool long_tests() {
  return std::getenv("LOCKSTEP_LONG_TESTS") != nullptr;
}

TEST(Generations, OneFormsAndTheJobIsDoneWhenNothingGoesWrong) {
  World world({.hosts = 4, .min = 4}, {}, 1);
  EXPECT_EQ(world.run(seconds(100)), "");
  EXPECT_EQ(world.generations(), 1);
  EXPECT_EQ(world.done(), 4);
  EXPECT_LT(world.met(), milliseconds(100));
}

TEST(Generations, WhateverIsLostOneWinsIsEqualEverywhereAndEnds) {
  const int schedules = long_tests() ? 100'000 : 2'000;
  int generations = 0, done = 0, failed = 0, leaders = 0;
  int64_t messages = 0;
  for (int seed = 1; seed <= schedules; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const auto any = [&](double most) {
      const double u = std::uniform_real_distribution<double>(0, 1)(random);
      return u < 0.3 ? 0 : most * u * u;
    };
    const auto from_to = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    JobOptions job;
    job.hosts = from_to(2, 6);
    job.min = from_to(1, job.hosts);
    job.on_failure = from_to(0, 5) == 0 ? OnFailure::kStop : OnFailure::kRestart;
    job.max_restarts = from_to(0, 4);
    job.work = milliseconds(from_to(100, 40'000));
    job.last_call = milliseconds(from_to(0, 8'000));
    Weather weather;
    weather.loss = any(0.4);
    weather.twice = any(0.5);
    weather.slowest_ms = 1 + static_cast<int>(any(3000));
    weather.crash = any(0.03);
    weather.comes_back = 0.7;
    weather.cut = any(0.03);
    weather.rank_dies = any(0.5);
    weather.leaves = any(0.01);
    weather.until = seconds(from_to(5, 120));
    World world(job, weather, static_cast<uint64_t>(seed));
    ASSERT_EQ(world.run(seconds(700)), "") << "seed " << seed;
    generations += world.generations();
    done += world.done();
    failed += world.failed();
    leaders += world.leaders();
    messages += world.messages();
  }
  std::printf(
      "[ measured ] %d schedules: %d generations, %d leaders, %d agents ended well, %d with a "
      "message, %lld messages\n",
      schedules, generations, leaders, done, failed, static_cast<long long>(messages));
  EXPECT_GT(generations, schedules) << "jobs are started anew";
  EXPECT_GT(done, schedules / 2) << "many get done";
  EXPECT_GT(failed, 0);
}

TEST(Generations, TenThousandAgentsMeetInSecondsWithMessagesInProportion) {
  for (const int hosts : {1000, 10'000}) {
    const auto begin = std::chrono::steady_clock::now();
    World world({.hosts = hosts, .min = hosts / 2, .work = milliseconds(500)}, {}, 1);
    ASSERT_EQ(world.run(seconds(100)), "");
    const double real =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf(
        "[ measured ] %d agents: met after %.3f s of virtual time, the whole job %.2f s of real "
        "time, %.2f messages an agent\n",
        hosts, static_cast<double>(world.met().count()) / 1000, real,
        static_cast<double>(world.messages()) / hosts);
    EXPECT_EQ(world.done(), hosts);
    EXPECT_LT(world.met(), seconds(5));
    EXPECT_LT(real, 60) << "generous: the machine may be busy";
    EXPECT_LT(world.messages(), 20 * hosts);
  }
}

}  // namespace generations_test
}  // namespace lockstep::launch
