#include "lockstep/testing/process_ranks.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "lockstep/comm/forked_rank.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/env.h"
#include "lockstep/core/log.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/secret.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/spawn.h"

namespace lockstep::inline v0::testing {
namespace {

// Children of this process, from /proc.
std::vector<int> children() {
  std::vector<int> pids;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const auto pid = parse_int(entry.path().filename().string(), 1);
    if (!pid) continue;
    std::ifstream stat(entry.path() / "stat");
    std::string text;
    std::getline(stat, text);
    // pid (name) state ppid
    std::istringstream rest(text.substr(text.rfind(')') + 1));
    std::string state;
    int parent = 0;
    if (rest >> state >> parent && parent == ::getpid()) pids.push_back(static_cast<int>(*pid));
  }
  return pids;
}

// All threads' stacks by gdb, which a test machine has; without it, where the kernel sees each
// thread.
std::string stacks_of(int pid) {
  const std::string command = "timeout 30 gdb -p " + std::to_string(pid) +
                              " -batch -ex 'set pagination off' -ex 'thread apply all bt 25' "
                              "2>/dev/null | grep -E '^(Thread|#)'";
  std::string text;
  if (FILE* pipe = ::popen(command.c_str(), "r")) {
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
    ::pclose(pipe);
  }
  if (!text.empty()) return text;
  std::error_code ignored;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", ignored)) {
    std::string wchan, name;
    std::getline(std::ifstream(task.path() / "wchan"), wchan);
    std::getline(std::ifstream(task.path() / "comm"), name);
    text += "thread " + task.path().filename().string() + " (" + name + ") waits in " +
            (wchan.empty() ? "?" : wchan) + "\n";
  }
  return text;
}

// Runs `expired` if the deadline passes before stop().
class Alarm {
 public:
  Alarm(std::chrono::nanoseconds after, std::function<void()> expired)
      : thread_([this, after, expired = std::move(expired)] {
          const Deadline deadline = Deadline::after(after);
          MutexLock lock(mutex_);
          while (!stop_ && !deadline.expired()) stopped_.wait_until(lock, deadline.time());
          if (!stop_) expired();
        }) {}
  ~Alarm() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_all();
    thread_.join();
  }

 private:
  Mutex mutex_;
  ConditionVariable stopped_;
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

RankResult run_ranks(int size, const std::function<void(Communicator&)>& fn,
                     const RankOptions& options) {
  // A process that spawn() has started is a rank already, and has what it needs.
  const launch::SpawnPoint point{.name = options.name,
                                 .arguments = options.arguments,
                                 .by_fork = !launch::in_spawned_child() && can_fork_ranks()};
  const auto run = [&] {
    if (point.by_fork) begin_forked_rank();
    Communicator comm = init({.backend = options.backend, .timeout = options.timeout});
    fn(comm);
  };
  launch::LaunchOptions launch_options;
  launch_options.prefix = launch::LinePrefix::kRank;
  launch_options.quiet = true;
  launch_options.threads_per_rank = 1;
  launch_options.run_id = to_hex(random_bytes(8));  // a job of its own
  if (options.replacements > 0) {
    launch_options.on_failure = launch::OnFailure::kReplace;
    launch_options.max_restarts = options.replacements;
  }
  launch_options.simulate_failures = options.simulate_failures;
  if (options.shrinks) launch_options.on_failure = launch::OnFailure::kShrink;

  std::atomic<bool> timed_out{false};
  RankResult result;
  if (launch::in_spawned_child()) {
    launch::spawn(size, run, launch_options, point);
    return result;  // another call's child
  }
  {
    const Alarm alarm(options.deadline, [&] {
      timed_out = true;
      // All stacks before the first kill: the agent ends the others as soon as one is gone.
      const std::vector<int> pids = children();
      for (const int pid : pids) {
        log_error("rank process " + std::to_string(pid) + " did not end in time; its stacks:\n" +
                  stacks_of(pid));
      }
      for (const int pid : pids) ::kill(pid, SIGKILL);
    });
    result.launch = launch::spawn(size, run, launch_options, point);
  }
  result.timed_out = timed_out;
  if (result.launch.exit_code != 0) {
    result.report =
        timed_out
            ? "the ranks did not end within " +
                  std::to_string(std::chrono::duration<double>(options.deadline).count()) + " s; "
            : std::string();
    if (result.launch.failure)
      result.report += launch::format_failure(*result.launch.failure, size);
  }
  return result;
}

}  // namespace lockstep::inline v0::testing
