#include "lockstep/core/subprocess.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/fork_lock.h"
#include "lockstep/core/internal/cpu_mask.h"

namespace lockstep::inline v0 {
namespace {

constexpr auto kExecTimeout = std::chrono::seconds(60);

// A temporary shortage is not a mistake of the user who named the program.
[[noreturn]] void fail_to_start(const std::string& program, int errnum) {
  const SystemError error = system_error("cannot start '" + program + "'", errnum);
  for (const int passing : {EAGAIN, ENOMEM, EMFILE, ENFILE, ETXTBSY, EIO, ETIMEDOUT}) {
    if (errnum == passing) throw error;
  }
  std::string reason = error.what();
  if (errnum == ENOENT)
    reason += "; the file, or the interpreter that its first line names, does not exist";
  if (errnum == ENOEXEC)
    reason += "; it is neither a program for this machine nor a script with a #! line";
  throw LaunchError(reason);
}

// Returns the descriptor itself if it is 3 or above, otherwise a copy there, so that dup2 onto 0,
// 1, 2 does not overwrite one that is still needed.
int above_stdio(int fd, UniqueFd& copy) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  copy.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!copy) throw system_error("fcntl(F_DUPFD)", errno);
  return copy.get();
}

// The data that the child needs, made before fork, because a child that executes a program must not
// allocate.
struct ChildPlan {
  const std::function<int()>* body;  // instead of a program
  const char* program;
  char* const* argv;
  char* const* envp;
  int stdio[3];
  const int* inherit;
  size_t inherit_count;
  const cpu_set_t* cpus;
  size_t cpus_size;
  bool own_session;
  bool die_with_parent;
  pid_t parent;
  int error_fd;
};

// Handlers of the parent must not run in the child: signals are still blocked here, and are
// unblocked last.
void reset_signals() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action;
    if (::sigaction(number, nullptr, &action) != 0) continue;
    if ((action.sa_flags & SA_SIGINFO) == 0 &&
        (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)) {
      continue;
    }
    action.sa_flags = 0;
    action.sa_handler = SIG_DFL;
    ::sigaction(number, &action, nullptr);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void fail_child(const ChildPlan& plan) {
  const int error = errno;
  [[maybe_unused]] const ssize_t n = ::write(plan.error_fd, &error, sizeof error);
  ::_exit(127);
}

// What exec would close.
void close_on_exec() {
  std::vector<int> fds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    if (const auto fd = parse_int(entry.path().filename().string(), 0))
      fds.push_back(static_cast<int>(*fd));
  }
  for (const int fd : fds) {
    const int flags = ::fcntl(fd, F_GETFD);  // the one that read the folder is closed by now
    if (flags >= 0 && (flags & FD_CLOEXEC) != 0) ::close(fd);
  }
}

// Runs in the child, for a process that survives fork.
[[noreturn]] void run_body(const ChildPlan& plan) {
  environ = const_cast<char**>(plan.envp);
  close_on_exec();
  reset_signals();
  const int code = (*plan.body)();
  std::fflush(nullptr);
  ::_exit(code);
}

// Runs in the child. Only async-signal-safe calls up to a body.
[[noreturn]] void run_child(const ChildPlan& plan) {
  if (plan.die_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // It died before the line above: no signal will arrive.
    if (::getppid() != plan.parent) ::_exit(127);
  }
  if (plan.own_session) ::setsid();
  // Best effort.
  if (plan.cpus != nullptr) ::sched_setaffinity(0, plan.cpus_size, plan.cpus);
  for (int fd = 0; fd < 3; ++fd) {
    if (plan.stdio[fd] >= 0 && ::dup2(plan.stdio[fd], fd) < 0) fail_child(plan);
  }
  for (size_t i = 0; i < plan.inherit_count; ++i) {
    if (::fcntl(plan.inherit[i], F_SETFD, 0) != 0) fail_child(plan);
  }
  if (plan.body != nullptr) run_body(plan);
  reset_signals();
  ::execve(plan.program, plan.argv, plan.envp);
  fail_child(plan);
}

// Calls fork() with every signal blocked around it, in both processes.
pid_t fork_quietly(const ChildPlan& plan) LOCKSTEP_UNCHECKED {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  if (plan.body != nullptr) fork_lock().lock();
  const pid_t pid = ::fork();
  const int error = errno;
  if (plan.body != nullptr) fork_lock().unlock();  // in both
  if (pid == 0) run_child(plan);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

// The child's message before it gave up; 0 when exec succeeded, which closed the pipe.
int read_exec_error(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  const Deadline deadline = Deadline::after(kExecTimeout);
  while (true) {
    const int ready = ::poll(&waiting, 1, deadline.poll_ms());
    if (ready == 0) return ETIMEDOUT;
    int error = 0;
    const ssize_t n = ready > 0 ? ::read(fd, &error, sizeof error) : -1;
    if (n < 0 && errno == EINTR) continue;
    return n == sizeof error ? error : 0;
  }
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

ExitStatus decode(const siginfo_t& end) {
  ExitStatus result;
  if (end.si_code == CLD_EXITED) {
    result.exit_code = end.si_status;
  } else {
    result.signal = end.si_status;
  }
  return result;
}

// Whether the process belongs to the group and is alive; reaps it if it is this process's child.
bool lives_in(pid_t process, pid_t group) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return false;  // it has ended meanwhile
  std::istringstream rest(text.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0, its_group = 0;
  rest >> state >> parent >> its_group;
  if (its_group != group) return false;
  if (parent == ::getpid() && ::waitpid(process, nullptr, WNOHANG) == process) return false;
  return state != 'Z' && state != 'X';
}

// Whether a process of the group other than its leader lives.
bool others_live(pid_t group) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc"), ::closedir);
  if (!directory) return false;
  while (const dirent* entry = ::readdir(directory.get())) {
    const auto process = parse_int(entry->d_name, 1);
    if (process && *process != group && lives_in(static_cast<pid_t>(*process), group)) return true;
  }
  return false;
}

bool is_executable_file(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.empty()) throw LaunchError("no program given");
  if (name.find('/') != std::string::npos) {
    struct stat info{};
    if (::stat(name.c_str(), &info) != 0)
      throw LaunchError(system_error("program '" + name + "'", errno).what());
    if (S_ISDIR(info.st_mode)) throw LaunchError("program '" + name + "' is a directory");
    if (::access(name.c_str(), X_OK) != 0) {
      throw LaunchError("program '" + name + "' is not executable; run: chmod +x " + name);
    }
    return name;
  }
  const std::string path = process_env()("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable_file(candidate)) return candidate;
  }
  std::string hint;
  if (is_executable_file("./" + name)) hint = "; it is in the current folder: write ./" + name;
  throw LaunchError("program '" + name + "' not found on PATH" + hint);
}

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw system_error("pipe", errno);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

Subprocess::Subprocess(const SubprocessOptions& options) : own_session_(options.own_session) {
  if (options.command.empty()) throw LaunchError("no program given");
  name_ = options.command.front();
  const std::string program =
      options.program.empty() && !options.body ? find_program(name_) : options.program;
  const std::vector<char*> argv = pointers(options.command);
  const std::vector<char*> envp = options.env ? pointers(*options.env) : std::vector<char*>();
  const CpuMask cpus(options.cpus);
  Pipe error = make_pipe();
  UniqueFd copies[4];

  ChildPlan plan{};
  plan.body = options.body ? &options.body : nullptr;
  plan.program = program.c_str();
  plan.argv = argv.data();
  plan.envp = options.env ? envp.data() : environ;
  plan.stdio[0] = above_stdio(options.stdin_fd, copies[0]);
  plan.stdio[1] = above_stdio(options.stdout_fd, copies[1]);
  plan.stdio[2] = above_stdio(options.stderr_fd, copies[2]);
  plan.inherit = options.inherit.data();
  plan.inherit_count = options.inherit.size();
  plan.cpus = cpus.get();
  plan.cpus_size = cpus.size();
  plan.own_session = options.own_session;
  plan.die_with_parent = options.die_with_parent;
  plan.parent = ::getpid();
  plan.error_fd = above_stdio(error.write.get(), copies[3]);

  if (options.body) std::fflush(nullptr);  // or both would write what is buffered
  pid_ = fork_quietly(plan);
  if (pid_ < 0) throw system_error("cannot start '" + name_ + "': fork", errno);
  error.write.reset();
  copies[3].reset();
  if (const int reason = read_exec_error(error.read.get())) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    fail_to_start(program, reason);
  }
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : name_(std::move(other.name_)),
      own_session_(other.own_session_),
      pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      status_(other.status_),
      reaped_(other.reaped_) {}

Subprocess::~Subprocess() {
  if (pid_ < 0) return;
  if (!status_) signal_group(SIGKILL);
  reap();
}

void Subprocess::reap() noexcept {
  if (reaped_) return;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
}

std::optional<ExitStatus> Subprocess::poll() {
  if (status_) return status_;
  siginfo_t end{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT) == 0) {
    if (end.si_pid != pid_) return std::nullopt;
    status_ = decode(end);
    if (!own_session_) reap();
  } else if (errno == ECHILD) {
    // Other code in this process reaped it (a handler that waits for all children): its status is
    // lost.
    status_ = ExitStatus{255, 0};
    reaped_ = true;
  }
  return status_;
}

ExitStatus Subprocess::wait(Deadline deadline) {
  while (true) {
    if (const auto status = poll()) return *status;
    if (deadline.expired()) {
      std::ostringstream what;
      what << "process " << pid_ << " (" << name_ << ") did not end within "
           << deadline.timeout_seconds() << " s";
      throw Timeout(what.str());
    }
    if (pidfd_) {
      pollfd waiting{pidfd_.get(), POLLIN, 0};
      ::poll(&waiting, 1, deadline.poll_ms(1000));
    } else {
      std::this_thread::sleep_for(
          std::min<Deadline::Duration>(std::chrono::milliseconds(5), deadline.remaining()));
    }
  }
}

void Subprocess::signal(int number) noexcept {
  if (pid_ > 0 && !status_) ::kill(pid_, number);
}

void Subprocess::signal_group(int number) noexcept {
  if (!own_session_) {
    signal(number);
  } else if (pid_ > 0 && !reaped_) {
    ::kill(-pid_, number);
  }
}

bool Subprocess::group_alive() {
  if (pid_ <= 0) return false;
  if (!poll()) return true;
  if (reaped_) return false;
  // Checks twice, because the first look may miss a process that one already looked at has just
  // started.
  if (others_live(pid_) || others_live(pid_)) return true;
  reap();
  return false;
}

}  // namespace lockstep::inline v0
