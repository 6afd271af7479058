#include "lockstep/launch/signal_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {
namespace {

std::atomic<int> g_signal_pipe{-1};

extern "C" void write_signal_to_pipe(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  const int fd = g_signal_pipe.load(std::memory_order_relaxed);
  if (fd >= 0) [[maybe_unused]]
    const ssize_t n = ::write(fd, &byte, 1);
  errno = saved;
}

extern "C" void ignore_signal(int) {}

}  // namespace

SignalPipe::SignalPipe() : pipe_(make_pipe()) {
  for (const int fd : {pipe_.read.get(), pipe_.write.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  int none = -1;
  if (!g_signal_pipe.compare_exchange_strong(none, pipe_.write.get())) {
    throw LaunchError(
        "another launch is running in this process; one at a time can handle its signals");
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    install(signal, write_signal_to_pipe, false);
  }
  // A handler rather than SIG_IGN, so that programs started meanwhile get the default action.
  install(SIGPIPE, ignore_signal, false);
  install(SIGCHLD, SIG_DFL, true);
}

void SignalPipe::install(int signal, void (*handler)(int), bool when_ignored) {
  struct sigaction former{};
  if (::sigaction(signal, nullptr, &former) != 0) return;
  const bool ignored = (former.sa_flags & SA_SIGINFO) == 0 && former.sa_handler == SIG_IGN;
  if (ignored != when_ignored) return;
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(signal, &action, nullptr) == 0) former_.emplace_back(signal, former);
}

SignalPipe::~SignalPipe() {
  for (const auto& [signal, former] : former_) ::sigaction(signal, &former, nullptr);
  g_signal_pipe.store(-1);
}

std::vector<int> SignalPipe::take() {
  std::vector<int> signals;
  unsigned char bytes[64];
  while (true) {
    const ssize_t n = ::read(pipe_.read.get(), bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return signals;
    signals.insert(signals.end(), bytes, bytes + n);
  }
}

}  // namespace lockstep::inline v0::launch
