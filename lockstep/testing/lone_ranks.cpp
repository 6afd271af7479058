#include "lockstep/testing/lone_ranks.h"

#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "lockstep/comm/forked_rank.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/net.h"
#include "lockstep/core/process_state.h"
#include "lockstep/core/secret.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::inline v0::testing {
namespace {

constexpr const char* kLoneCall = "LOCKSTEP_TEST_LONE_CALL";  // "<parent's pid>:<name>"

std::string call_text(int parent, const std::string& name) {
  return std::to_string(parent) + ":" + name;
}

// All are there before the first of them counts its time-outs.
void meet(int size) {
  const EnvLookup env = process_env();
  const Deadline deadline = Deadline::seconds(60);
  TcpStore store(parse_host_port(env("LOCKSTEP_STORE").value()), Secret::from_env(env).value(),
                 deadline);
  store_barrier(store, "started", size, deadline);
}

// The exit code.
int run_rank(int size, const std::function<void()>& fn) {
  try {
    meet(size);
    fn();
    return 0;
  } catch (const std::exception& error) {
    log_error(error.what());
    return 1;
  }
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  off_t at = 0;
  for (ssize_t n = 0; (n = ::pread(fd, buffer, sizeof buffer, at)) > 0; at += n)
    text.append(buffer, static_cast<size_t>(n));
  return text;
}

struct Running {
  UniqueFd output;
  std::unique_ptr<Subprocess> process;
};

// `fork`: what a fork runs on its host; none, where the rank executes this program anew.
Running start_rank(int rank, int size, const HostPort& store, const Secret& secret,
                   const LoneOptions& options, const std::function<int()>& fork) {
  Running running;
  // Of one host, so memory is as good as a file and needs no clearing away.
  running.output.reset(::memfd_create("lockstep-test-output", MFD_CLOEXEC));
  if (!running.output) throw system_error("memfd_create", errno);
  launch::Variables variables;
  const std::vector<int>& hosts = options.hosts.of_rank;
  const int host = hosts.empty() ? 0 : hosts[static_cast<size_t>(rank)];
  variables.insert(options.variables.begin(), options.variables.end());
  variables["RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = std::to_string(size);
  variables["LOCAL_RANK"] =
      std::to_string(hosts.empty() ? rank : std::count(hosts.begin(), hosts.begin() + rank, host));
  variables["LOCAL_WORLD_SIZE"] =
      std::to_string(hosts.empty() ? size : std::count(hosts.begin(), hosts.end(), host));
  variables["GROUP_RANK"] = std::to_string(host);
  variables["LOCKSTEP_STORE"] = store.to_string();
  variables["LOCKSTEP_SECRET"] = secret.text();
  variables["OMP_NUM_THREADS"] = "1";
  variables[kLoneCall] = call_text(::getpid(), options.name);
  SubprocessOptions process;
  std::string program = "/proc/self/exe";
  char path[4096] = {};
  if (::readlink(program.c_str(), path, sizeof path - 1) > 0) program = path;
  if (fork) {
    const std::function<void()> enter =
        hosts.empty() ? std::function<void()>([] {}) : options.hosts.entrance(host);
    process.body = [fork, enter] {
      enter();
      return fork();
    };
  } else if (!hosts.empty()) {
    process.command = options.hosts.prefix(host);
  }
  if (hosts.empty()) process.program = program;
  process.command.push_back(program);
  process.command.insert(process.command.end(), options.arguments.begin(), options.arguments.end());
  process.env = launch::merge_environment(launch::current_environment(), variables);
  process.stdout_fd = process.stderr_fd = running.output.get();
  running.process = std::make_unique<Subprocess>(process);
  return running;
}

int count_entries(const char* directory) {
  std::error_code ignored;
  int count = 0;
  for (auto it = std::filesystem::directory_iterator(directory, ignored);
       it != std::filesystem::directory_iterator(); ++it) {
    ++count;
  }
  return count;
}

}  // namespace

bool in_lone_rank() {
  return process_env()(kLoneCall).has_value();
}

std::vector<LoneRank> run_lone_ranks(int size, const std::function<void()>& fn,
                                     const LoneOptions& options) {
  if (const auto call = process_env()(kLoneCall)) {
    if (*call == call_text(::getppid(), options.name)) std::exit(run_rank(size, fn));
    return {};  // another call's child
  }
  std::function<int()> fork;
  if ((options.hosts.of_rank.empty() || options.hosts.entrance) && can_fork_ranks()) {
    fork = [&] {
      begin_forked_rank();
      return run_rank(size, fn);
    };
  }
  const Deadline deadline = Deadline::after(options.deadline);
  const Secret secret = Secret::generate();
  std::unique_ptr<TcpStoreServer> server;
  if (options.hosts.of_rank.empty()) {
    server = std::make_unique<TcpStoreServer>(HostPort{"127.0.0.1", 0}, secret);
  } else {
    options.hosts.on(0, [&] {
      server = std::make_unique<TcpStoreServer>(HostPort{options.hosts.address, 0}, secret);
    });
  }
  std::vector<Running> running;
  for (int rank = 0; rank < size; ++rank)
    running.push_back(start_rank(rank, size, server->address(), secret, options, fork));

  std::vector<LoneRank> ranks(static_cast<size_t>(size));
  while (true) {
    bool all_ended = true;
    bool all_ended_or_stopped = true;
    for (const Running& one : running) {
      if (one.process->poll()) continue;
      all_ended = false;
      if (process_state(one.process->pid()) != 'T') all_ended_or_stopped = false;
    }
    if (all_ended) break;
    if (all_ended_or_stopped || deadline.expired()) {
      for (size_t r = 0; r < ranks.size(); ++r) {
        if (running[r].process->poll()) continue;
        ranks[r].was_stopped = process_state(running[r].process->pid()) == 'T';
        ranks[r].timed_out = !ranks[r].was_stopped;
        running[r].process->signal_group(SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].status = *running[r].process->poll();
    ranks[r].output = read_all(running[r].output.get());
  }
  return ranks;
}

Holdings holdings() {
  Holdings result;
  result.fds = count_entries("/proc/self/fd") - 1;  // less the one that reads the directory
  result.threads = count_entries("/proc/self/task");
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "children");
    for (int pid = 0; file >> pid;) ++result.children;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") != std::string::npos) ++result.memfds;
  }
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) result.rss_kib = std::atoll(line.c_str() + 6);
  }
  const struct mallinfo2 heap = ::mallinfo2();
  result.heap_bytes = static_cast<int64_t>(heap.uordblks + heap.hblkhd);
  return result;
}

Holdings holdings_after(const Holdings& before) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(2));
  while (true) {
    const Holdings now = holdings();
    const bool back = now.fds <= before.fds && now.children <= before.children &&
                      now.threads <= before.threads && now.memfds <= before.memfds;
    if (back || deadline.expired()) return now;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace lockstep::inline v0::testing
