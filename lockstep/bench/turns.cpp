#include "lockstep/bench/turns.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::bench {
namespace {

void write_line(int fd, const std::string& line) {
  const std::string text = line + "\n";
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw system_error("writing to the benchmark's other end", errno);
    at += static_cast<size_t>(n);
  }
}

// Reads byte by byte, because what follows the line belongs to another reader. Empty at the end of
// the stream.
std::string read_line(int fd) {
  std::string line;
  for (char c = 0;;) {
    const ssize_t n = ::read(fd, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || c == '\n') return line;
    line += c;
  }
}

UniqueFd open_end(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC));
  if (!fd) throw system_error("opening " + path + ", this benchmark's line to its parent", errno);
  return fd;
}

}  // namespace

TurnGiver::TurnGiver(int processes) {
  for (int i = 0; i < processes; ++i) lines_.push_back({make_pipe(), make_pipe()});
}

// An address is "PID:go,back,go,back...", with the numbers of descriptors.
std::string TurnGiver::address() const {
  std::string text = std::to_string(::getpid());
  char separator = ':';
  for (const Line& line : lines_) {
    text += separator + std::to_string(line.go.read.get()) + "," +
            std::to_string(line.back.write.get());
    separator = ',';
  }
  return text;
}

std::vector<std::string> TurnGiver::give(int steps, Subprocess& job, Deadline deadline) {
  for (const Line& line : lines_) write_line(line.go.write.get(), std::to_string(steps));
  std::vector<std::string> answers;
  for (size_t i = 0; i < lines_.size(); ++i) answers.push_back(hear(i, job, deadline));
  return answers;
}

std::string TurnGiver::ask(size_t process, const std::string& task, Subprocess& job,
                           Deadline deadline) {
  write_line(lines_.at(process).go.write.get(), task);
  return hear(process, job, deadline);
}

std::string TurnGiver::hear(size_t process, Subprocess& job, Deadline deadline) {
  const int fd = lines_.at(process).back.read.get();
  pollfd ready{fd, POLLIN, 0};
  while (::poll(&ready, 1, 100) != 1) {
    if (const auto end = job.poll())
      throw LaunchError("a contender ended before its turn was over; see above");
    if (deadline.expired()) throw Timeout("a contender did not end its turn in time");
  }
  return read_line(fd);
}

void TurnGiver::end() {
  for (const Line& line : lines_) write_line(line.go.write.get(), "0");
}

TurnTaker::TurnTaker(const std::string& address, int rank) {
  const size_t colon = address.find(':');
  std::istringstream numbers(address.substr(colon == std::string::npos ? 0 : colon + 1));
  std::vector<std::string> fds;
  for (std::string number; std::getline(numbers, number, ',');) fds.push_back(number);
  const size_t first = 2 * static_cast<size_t>(rank);
  if (colon == std::string::npos || fds.size() < first + 2)
    throw InvalidArgument("--turns '" + address + "' is not for rank " + std::to_string(rank));
  const std::string folder = "/proc/" + address.substr(0, colon) + "/fd/";
  go_ = open_end(folder + fds[first], O_RDONLY);
  back_ = open_end(folder + fds[first + 1], O_WRONLY);
}

int TurnTaker::take() {
  return std::atoi(read_line(go_.get()).c_str());
}

std::string TurnTaker::take_task() {
  const std::string line = read_line(go_.get());
  return line == "0" ? "" : line;
}

void TurnTaker::answer(const std::string& line) {
  write_line(back_.get(), line);
}

}  // namespace lockstep::inline v0::bench
