// Helpers of the tests with real processes: start launch_test_program, and check for leftovers.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/subprocess.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::inline v0::launch {
namespace launch_test_support {

using Words = std::vector<std::string>;

inline std::string program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "launch_test_program")
      .string();
}

// A started program whose output is collected.
class Running {
 public:
  explicit Running(const Words& words)
      : out_(make_pipe()), err_(make_pipe()), process_(options(words)) {
    out_.write.reset();
    err_.write.reset();
  }
  Running(Running&&) = delete;

  Subprocess& process() { return process_; }
  // Reads until `text` has appeared on stdout `times` times.
  void await_output(const std::string& text, int times = 1) { await(out, text, times); }
  // The same on stderr.
  void await_error(const std::string& text) { await(err, text, 1); }
  // Reads the output of the next 20 ms.
  void read_some() { read(20); }
  // Reads to the end and returns the exit code, or 128 + signal.
  // Throws: Timeout.
  int finish() {
    const Deadline deadline = Deadline::seconds(120);
    while ((out_.read || err_.read) && !deadline.expired()) read(1000);
    const ExitStatus status = process_.wait(Deadline::seconds(30));
    return status.signal == 0 ? status.exit_code : 128 + status.signal;
  }

  std::string out, err;

 private:
  SubprocessOptions options(const Words& words) const {
    SubprocessOptions options;
    options.command = words;
    options.stdout_fd = out_.write.get();
    options.stderr_fd = err_.write.get();
    return options;
  }
  void await(const std::string& stream, const std::string& text, int times) {
    const Deadline deadline = Deadline::seconds(20);
    const auto seen = [&] {
      int count = 0;
      for (size_t at = 0; (at = stream.find(text, at)) != std::string::npos; ++at) ++count;
      return count;
    };
    while (seen() < times && !deadline.expired()) read(20);
    EXPECT_GE(seen(), times) << text << " in " << stream;
  }
  void read(int timeout_ms) {
    pollfd polls[] = {{out_.read.get(), POLLIN, 0}, {err_.read.get(), POLLIN, 0}};
    ::poll(polls, 2, timeout_ms);
    take(out_.read, polls[0].revents, out);
    take(err_.read, polls[1].revents, err);
  }
  static void take(UniqueFd& fd, short events, std::string& text) {
    if (events == 0) return;
    char buffer[65536];
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n > 0) {
      text.append(buffer, static_cast<size_t>(n));
    } else {
      fd.reset();
    }
  }

  Pipe out_, err_;
  Subprocess process_;
};

// A started program with its stdout and stderr together.
class Started {
 public:
  explicit Started(const Words& words, const Variables& variables = {})
      : pipe_(make_pipe()), process_(options(words, variables)) {
    pipe_.write.reset();
  }
  // Reads until `text` has appeared.
  void await(const std::string& text) {
    const Deadline deadline = Deadline::seconds(60);
    while (said.find(text) == std::string::npos && !deadline.expired() && read()) {
    }
    EXPECT_THAT(said, ::testing::HasSubstr(text));
  }
  // Reads to the end and returns the exit code, or 128 + signal.
  // Throws: Timeout.
  int finish() {
    while (read()) {
    }
    const ExitStatus status = process_.wait(Deadline::seconds(60));
    return status.signal == 0 ? status.exit_code : 128 + status.signal;
  }
  Subprocess& process() { return process_; }

  std::string said;

 private:
  SubprocessOptions options(const Words& words, const Variables& variables) const {
    SubprocessOptions options;
    options.command = words;
    options.stdout_fd = options.stderr_fd = pipe_.write.get();
    options.env = merge_environment(current_environment(), variables);
    return options;
  }
  bool read() {
    pollfd waiting{pipe_.read.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 60000) <= 0) return false;
    char buffer[65536];
    const ssize_t n = ::read(pipe_.read.get(), buffer, sizeof buffer);
    if (n > 0) said.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  Pipe pipe_;
  Subprocess process_;
};

struct Ended {
  int code = 0;
  std::string out, err;
  double seconds = 0;
};

inline Ended run_words(Words words) {
  words.insert(words.begin(), program());
  const auto start = std::chrono::steady_clock::now();
  Running running(words);
  Ended ended;
  ended.code = running.finish();
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ended.out = running.out;
  ended.err = running.err;
  return ended;
}

inline Ended run(Words agent_words, const Words& command) {
  agent_words.insert(agent_words.begin(), "run");
  agent_words.push_back("--");
  agent_words.insert(agent_words.end(), command.begin(), command.end());
  return run_words(agent_words);
}

inline Ended run_shell(Words agent_words, const std::string& script) {
  return run(std::move(agent_words), {"/bin/sh", "-c", script});
}

inline Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline bool alive(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  return line[line.rfind(')') + 2] != 'Z';
}

inline bool dies_soon(int pid) {
  const Deadline deadline = Deadline::seconds(5);
  while (alive(pid) && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return !alive(pid);
}

// The numbers after "pid " in the output.
inline std::vector<int> pids_in(const std::string& text) {
  std::vector<int> pids;
  for (size_t at = 0; (at = text.find("pid ", at)) != std::string::npos; at += 4) {
    pids.push_back(std::stoi(text.substr(at + 4)));
  }
  return pids;
}

}  // namespace launch_test_support
}  // namespace lockstep::inline v0::launch
