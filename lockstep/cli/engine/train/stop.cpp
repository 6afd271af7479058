#include "lockstep/cli/engine/train/stop.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/report/terminal.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/stop_signals.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

std::string start_command(const StartedRun& run) {
  std::string text = shell_word(run.command) + " train";
  for (const std::string& argument : run.arguments) text += " " + shell_word(argument);
  return text;
}

// The state of the run's last checkpoint; nullopt where it has none. An older one belongs to a
// former run in the same folder.
std::optional<TrainerState> last_state(const StartedRun& run) {
  const fs::path last = RunFolder{run.output}.last();
  // A rank may still save, many times a second, and remove the checkpoint that is being looked at;
  // then there is a newer one.
  constexpr int kTries = 200, kAbsent = 20;
  constexpr std::chrono::milliseconds kPause(10);
  for (int i = 0, absent = 0; i < kTries && absent < kAbsent; ++i) {
    try {
      if (checkpoint_exists(last)) {
        const fs::path at = checkpoint_at(last);
        if (!run.resumed && fs::last_write_time(at) < run.started) return std::nullopt;
        return trainer_state_from_json(read_named_file(at / "trainer.json"), last.string());
      }
      ++absent;
    } catch (const std::exception&) {  // tries again
    }
    std::this_thread::sleep_for(kPause);
  }
  return std::nullopt;
}

std::string how_to_go_on(const StartedRun& run) {
  const auto state = last_state(run);
  if (!state) return "before its first checkpoint; start again with: " + start_command(run);
  return "the last checkpoint is " + RunFolder{run.output}.last().string() + " (step " +
         std::to_string(state->step) + "); go on with: " + resume_command(run);
}

bool is_ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

std::string resume_command(const StartedRun& run) {
  const bool resumes =
      std::find(run.arguments.begin(), run.arguments.end(), "--resume") != run.arguments.end();
  return start_command(run) + (resumes ? "" : " --resume");
}

std::string stopped_line(const StartedRun& run, int signal) {
  const std::string how = how_to_go_on(run);
  return "lockstep train: stopped by " + launch::signal_name(signal) +
         (how.starts_with("before") ? " " : "; ") + how + "\n";
}

std::string full_disk_text(const StartedRun& run, const std::exception& error) {
  const auto* failure = dynamic_cast<const SystemError*>(&error);
  if (failure == nullptr || (failure->errnum() != ENOSPC && failure->errnum() != EDQUOT)) return {};
  const auto state = last_state(run);
  return std::string(failure->what()) + "; make room there, then " +
         (state ? "go on with: " + resume_command(run) : "start again with: " + start_command(run));
}

std::string saved_line(const StartedRun& run, int signal, int64_t step) {
  return "lockstep train: stopped by " + launch::signal_name(signal) + " after step " +
         std::to_string(step) + ", saved in " + RunFolder{run.output}.last().string() +
         "; the same command " + (run.resumed ? "" : "with --resume ") + "goes on\n";
}

StopOnSignal::StopOnSignal(StartedRun run) {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    if (!is_ignored(signal)) ::sigaddset(&signals, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signals_.reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  end_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!signals_ || !end_) throw system_error("cannot wait for signals", errno);
  thread_ = std::thread([this, run = std::move(run)] { watch(run); });
}

StopOnSignal::~StopOnSignal() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(end_.get(), &one, sizeof one);
  thread_.join();
}

void StopOnSignal::watch(const StartedRun& run) const {
  while (true) {
    pollfd polls[] = {{signals_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}};
    if (::poll(polls, 2, -1) < 0) continue;
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const auto signal = static_cast<int>(info.ssi_signo);
      if (signal != SIGINT && StopSignals::note(signal)) continue;
      const bool bar = find_terminal(STDERR_FILENO, process_env()).interactive;
      launch::write_last_words(STDERR_FILENO, (bar ? "\r\x1b[K" : "") + stopped_line(run, signal));
      ::_exit(128 + signal);
    }
    if (polls[1].revents != 0) return;
  }
}

}  // namespace lockstep::inline v0::engine
