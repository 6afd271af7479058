#include "lockstep/launch/remote_agents.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/remote_order.h"

namespace lockstep::inline v0::launch {
namespace {

constexpr size_t kLongestOrder = size_t{16} << 20;
constexpr auto kLookForEnds = std::chrono::milliseconds(20);

// The console's numbers for the streams, separate from those of ranks on this host.
int source_of(const RemoteHost& host, int stream) {
  return (1 << 20) + 2 * host.number + stream;
}

StreamPlan shown_on(Console& console) {
  StreamPlan plan;
  plan.console = &console;
  return plan;
}

}  // namespace

RemoteAgents::RemoteAgents(const LaunchOptions& options, const std::vector<HostPort>& endpoints,
                           Console& out, Console& err) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string directory = std::filesystem::current_path().string();
  const std::vector<std::string> environment = current_environment();
  for (const RemoteHost& host : options.nodes->remotes) {
    Remote remote;
    remote.host = host;
    remote.order = encode(make_order(options, host, endpoints, directory, environment)) + "\n";
    remote.out = std::make_unique<OutputStream>(shown_on(out), source_of(host, 0));
    remote.err = std::make_unique<OutputStream>(shown_on(err), source_of(host, 1));
    Pipe input = make_pipe();
    ::fcntl(input.write.get(), F_SETFL, O_NONBLOCK);
    SubprocessOptions start;
    start.command = ssh_command(options.nodes->ssh, host.host, program);
    start.stdin_fd = input.read.get();
    start.stdout_fd = remote.out->child_fd();
    start.stderr_fd = remote.err->child_fd();
    remote.process = std::make_unique<Subprocess>(start);
    remote.out->started();
    remote.err->started();
    remote.input = std::move(input.write);
    remotes_.push_back(std::move(remote));
  }
}

void RemoteAgents::give_order(Remote& remote) {
  while (!remote.order.empty()) {
    const ssize_t n = ::write(remote.input.get(), remote.order.data(), remote.order.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    // It is not read any more: its end says why.
    remote.order.erase(0, n < 0 ? remote.order.size() : static_cast<size_t>(n));
  }
}

void RemoteAgents::watch(PollSet& polls) {
  const auto now = std::chrono::steady_clock::now();
  for (Remote& remote : remotes_) {
    if (!remote.order.empty())
      polls.add(remote.input.get(), POLLOUT, [&remote] { give_order(remote); });
    for (OutputStream* stream : {remote.out.get(), remote.err.get()}) {
      polls.wake_at(stream->on_time(now));
      stream->watch(polls, [stream] { stream->pump(std::chrono::steady_clock::now()); });
    }
    if (remote.ended) continue;
    polls.add(remote.process->exit_fd(), POLLIN);
    if (remote.process->exit_fd() < 0) polls.wake_at(now + kLookForEnds);
  }
}

std::vector<RemoteAgents::End> RemoteAgents::take_ends() {
  std::vector<End> ends;
  for (Remote& remote : remotes_) {
    if (remote.ended) continue;
    const auto status = remote.process->poll();
    if (!status) continue;
    remote.ended = true;
    // Its last output says why.
    remote.out->drain(std::chrono::steady_clock::now());
    remote.err->drain(std::chrono::steady_clock::now());
    ends.push_back(
        {remote.host.number,
         remote.host.host + ": ssh " +
             (status->signal != 0 ? "was killed by " + signal_name(status->signal)
                                  : "exited with code " + std::to_string(status->exit_code))});
  }
  return ends;
}

void RemoteAgents::let_go() {
  for (Remote& remote : remotes_) remote.input.reset();
}

bool RemoteAgents::all_ended() const {
  for (const Remote& remote : remotes_) {
    if (!remote.ended || !remote.out->ended() || !remote.err->ended()) return false;
  }
  return true;
}

int run_remote_agent(int input) {
  std::string line;
  for (char byte = 0; byte != '\n';) {
    const ssize_t n = ::read(input, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || line.size() > kLongestOrder) {
      throw InvalidArgument(
          "no order came; this is how lockstep run -H starts its agents, not "
          "something to run by hand");
    }
    if (byte != '\n') line += byte;
  }
  RemoteOrder order = decode_remote_order(line);
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  if (::chdir(order.directory.c_str()) != 0) {
    throw LaunchError(system_error(std::string(name) + ": the working directory " +
                                       order.directory + " of the launching host",
                                   errno)
                          .what());
  }
  for (const auto& [variable, value] : order.env) ::setenv(variable.c_str(), value.c_str(), 1);
  order.options.nodes->lifeline = input;
  return launch(order.options).exit_code;
}

}  // namespace lockstep::inline v0::launch
