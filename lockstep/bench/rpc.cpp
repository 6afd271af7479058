#include "lockstep/bench/rpc.h"

#include <sched.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>

#include "lockstep/bench/experiment.h"
#include "lockstep/bench/rpc_lockstep.h"
#include "lockstep/bench/rpc_sockets.h"
#include "lockstep/bench/turns.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::inline v0::bench {
namespace {

const auto kStartTime = std::chrono::minutes(2);
const auto kRpcTurnTime = std::chrono::minutes(10);

struct RpcKind {
  const char* name;
  const char* peer = "";     // its program in RpcOptions::peers; "": the command itself
  const char* variant = "";  // a word for that program
  bool flies = true;         // it has calls in flight
  bool small = true;         // it has calls, or a ping-pong
  bool served = true;        // a process that is started here serves it
  bool between_hosts = false;
  bool polls =
      false;  // also when there is nothing to do, so that it must be stopped between its turns
};
constexpr RpcKind kRpcKinds[] = {
    {.name = "lockstep", .variant = "quick", .between_hosts = true},
    {.name = "lockstep-workers", .between_hosts = true},
    {.name = "unix-socket", .variant = "unix", .flies = false},
    {.name = "tcp-socket", .variant = "tcp", .flies = false, .between_hosts = true},
    {.name = "memcpy", .flies = false, .small = false, .served = false},
    {.name = "libtorch", .peer = "rpc_libtorch", .variant = "uv", .between_hosts = true},
    {.name = "libtorch-shm", .peer = "rpc_libtorch", .variant = "shm", .polls = true},
    {.name = "grpc", .peer = "rpc_grpc", .between_hosts = true},
    {.name = "ray", .peer = "rpc_ray.py", .served = false}};

const RpcKind& rpc_kind(const std::string& name) {
  const auto* it = std::find_if(std::begin(kRpcKinds), std::end(kRpcKinds),
                                [&](const RpcKind& kind) { return name == kind.name; });
  if (it == std::end(kRpcKinds)) throw InvalidArgument("there is no contender '" + name + "'");
  return *it;
}

bool is_ray(const RpcKind& kind) {
  return std::string(kind.name) == "ray";
}

bool can_do(const RpcKind& kind, RpcWorkload what) {
  return what == RpcWorkload::kTensor || (what == RpcWorkload::kSmall ? kind.small : kind.flies);
}

std::string or_dash(const std::string& word) {
  return word.empty() ? "-" : word;
}

std::vector<std::string> rpc_command(const RpcKind& kind, const RpcOptions& options,
                                     const std::string& program, bool server,
                                     const std::string& turns, const std::string& address) {
  std::vector<std::string> command;
  if (options.prefix) command = options.prefix(server);
  const auto add = [&](std::initializer_list<std::string> words) {
    command.insert(command.end(), words);
  };
  if (is_ray(kind)) {
    add({options.peers.python, options.peers.file(kind.peer), turns});
    return command;
  }
  if (*kind.peer != '\0')
    add({options.peers.file(kind.peer)});
  else
    add({program, "bench", "rpc", "--process", kind.name});
  add({server ? "server" : "client", turns, or_dash(options.listen), or_dash(kind.variant),
       or_dash(address)});
  return command;
}

// Pins all threads of a process, and those that it starts later.
void keep_on(int pid, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  std::error_code ignored;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", ignored)) {
    if (const auto id = parse_int(task.path().filename().string(), 1))
      ::sched_setaffinity(static_cast<pid_t>(*id), sizeof set, &set);  // it may be gone
  }
}

// The two processes of a contender, which sleep outside of its turns.
class RpcContender {
 public:
  RpcContender(const RpcKind& kind, const RpcOptions& options, const std::string& program)
      : kind_(kind), turns_(2) {
    const Deadline deadline = Deadline::after(kStartTime);
    const auto start = [&](bool server, const std::string& address) {
      SubprocessOptions process;
      process.command = rpc_command(kind, options, program, server, turns_.address(), address);
      process.env = launch::merge_environment(launch::current_environment(),
                                              {{"LOCKSTEP_SECRET", secret_.text()}});
      return process;
    };
    std::string address;
    if (kind.served) {
      server_.emplace(start(true, ""));
      address = turns_.hear(0, *server_, deadline);
    }
    client_.emplace(start(false, address));
    turns_.hear(1, *client_, deadline);
    if (kind_.polls) signal(SIGSTOP);
  }

  const RpcKind& kind() const { return kind_; }
  RpcTurn turn(const RpcTask& task) {
    if (kind_.polls) signal(SIGCONT);
    // A call costs ten times as much where its two ends are on two processors. Without this the
    // scheduler's choice would be all that is measured.
    const bool apart = task.what == RpcWorkload::kSmall && server_ && cpus_.size() > 1;
    if (apart) {
      keep_on(server_->pid(), {cpus_[1]});
      keep_on(client_->pid(), {cpus_[0]});
    }
    const RpcTurn turn = take(task);
    if (apart) {
      keep_on(server_->pid(), cpus_);
      keep_on(client_->pid(), cpus_);
    }
    if (kind_.polls) signal(SIGSTOP);
    return turn;
  }
  // The client leaves first: a server may wait for it.
  void end() {
    if (kind_.polls) signal(SIGCONT);
    turns_.end();
    client_->wait(Deadline::seconds(60));
    if (server_) server_->wait(Deadline::seconds(60));
  }

 private:
  RpcTurn take(const RpcTask& task) {
    return parse_rpc_turn(turns_.ask(1, to_line(task), *client_, Deadline::after(kRpcTurnTime)));
  }
  void signal(int number) {
    client_->signal_group(number);
    if (server_) server_->signal_group(number);
  }

  const RpcKind& kind_;
  const std::vector<int> cpus_ = allowed_cpus();
  Secret secret_ = Secret::generate();
  TurnGiver turns_;
  std::optional<Subprocess> server_;
  std::optional<Subprocess> client_;
};

}  // namespace

const std::vector<std::string>& rpc_contenders() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const RpcKind& kind : kRpcKinds) names.emplace_back(kind.name);
    return names;
  }();
  return kNames;
}

void leave_out_absent(RpcOptions& options) {
  const auto of_others = [](const std::string& name) { return *rpc_kind(name).peer != '\0'; };
  if (const std::string why = options.peers.missing(); !why.empty()) {
    if (std::erase_if(options.contenders, of_others) > 0)
      log_warning("contenders of others are left out: " + why);
  }
  std::erase_if(options.contenders, [&](const std::string& name) {
    const RpcKind& kind = rpc_kind(name);
    std::string why;
    if (!options.listen.empty() && !kind.between_hosts) {
      why = "it is not measured between hosts";
    } else if (*kind.peer != '\0') {
      why = options.peers.obstacle(kind.peer, is_ray(kind) ? "ray, numpy" : "");
    }
    if (!why.empty()) log_warning(name + " is left out: " + why);
    return !why.empty();
  });
}

std::vector<Row> measure_rpc(const RpcOptions& options, const std::string& program) {
  std::vector<const RpcKind*> kinds;
  for (const std::string& name : options.contenders) {
    const RpcKind& kind = rpc_kind(name);
    if (std::any_of(options.tasks.begin(), options.tasks.end(),
                    [&](const RpcTask& task) { return can_do(kind, task.what); }))
      kinds.push_back(&kind);
  }
  if (kinds.empty()) throw InvalidArgument("no contender is left to measure");
  TurnBar bar;
  std::vector<std::unique_ptr<RpcContender>> contenders;
  for (const RpcKind* kind : kinds) {
    bar.starting(kind->name);
    contenders.push_back(std::make_unique<RpcContender>(*kind, options, program));
  }
  std::deque<RpcSeries> measured;  // jobs refer to them
  std::vector<Job> jobs;
  for (const RpcTask& task : options.tasks) {
    for (const auto& contender : contenders) {
      const RpcKind& kind = contender->kind();
      if (!can_do(kind, task.what)) continue;
      RpcSeries& series =
          measured.emplace_back(RpcSeries{.task = task, .contender = kind.name, .rounds = {}});
      jobs.push_back({std::string(to_string(task.what)) + " " + kind.name, [&] {
                        series.rounds.push_back(contender->turn(series.task));
                        return std::string();
                      }});
    }
  }
  run_experiment(jobs, options.rounds, bar);
  for (const auto& contender : contenders) contender->end();
  bar.finish("measured " + std::to_string(contenders.size()) + " ways to call another process");
  return make_rpc_rows({measured.begin(), measured.end()});
}

int run_rpc_contender(const std::vector<std::string>& words) {
  const RpcKind& kind = rpc_kind(words.empty() ? "" : words[0]);
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (std::string(kind.name).starts_with("lockstep"))
    return run_rpc_process(rest, lockstep_sides());
  return run_rpc_process(rest, kind.served ? socket_sides() : memcpy_sides());
}

}  // namespace lockstep::inline v0::bench
