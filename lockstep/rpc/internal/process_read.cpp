#include "lockstep/rpc/internal/process_read.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "lockstep/core/mutex.h"

namespace lockstep::inline v0::rpc::internal {

OtherProcess other_process(int fd) {
  OtherProcess other;
  int domain = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX)
    return other;
  ucred peer{};
  size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return other;
  other.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  // Without a pidfd, the word alone detects another process of that number. A process that has
  // ended is never read.
  if (other.process || errno == ENOSYS || errno == EPERM) other.pid = peer.pid;
  return other;
}

bool has_ended(const OtherProcess& process) {
  pollfd ended{process.process.get(), POLLIN, 0};  // poll() ignores a negative descriptor
  return ::poll(&ended, 1, 0) > 0;
}

namespace {

constexpr size_t kPart = size_t{4} << 20;
constexpr unsigned kMostHelpers = 3;

// A read that several threads share: each takes the next part until none is left.
struct Reading {
  int64_t pid;
  Proof proof;
  uint64_t address;
  char* to;
  size_t bytes;
  std::atomic<size_t> next{0};
  std::atomic<int> error{-1};  // errno of the first part that could not be read
  Mutex mutex;
  ConditionVariable left;
  int inside LOCKSTEP_GUARDED_BY(mutex) = 0;

  size_t parts() const { return (bytes + kPart - 1) / kPart; }
  void read() {
    for (size_t part = next++; part < parts(); part = next++) {
      const size_t begin = part * kPart;
      if (read_memory(pid, proof, address + begin, to + begin, std::min(kPart, bytes - begin)))
        continue;
      error.store(errno, std::memory_order_relaxed);
      next = parts();
    }
  }
  // A worker that arrives when nothing is left must not touch `to`: it may have another owner by
  // now.
  void help() {
    {
      const MutexLock lock(mutex);
      ++inside;
    }
    read();
    const MutexLock lock(mutex);
    if (--inside == 0) left.notify_all();
  }
  void wait() {
    MutexLock lock(mutex);
    while (inside > 0) left.wait(lock);  // for a copy of at most kPart bytes
  }
};

}  // namespace

bool read_process_by_many(Reactor& reactor, int64_t pid, Proof proof, uint64_t address, void* to,
                          size_t bytes) {
  if (bytes < 2 * kPart) return read_memory(pid, proof, address, to, bytes);
  const auto reading = std::make_shared<Reading>();
  reading->pid = pid;
  reading->proof = proof;
  reading->address = address;
  reading->to = static_cast<char*>(to);
  reading->bytes = bytes;
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const auto helpers = std::min(
      {static_cast<size_t>(kMostHelpers), static_cast<size_t>(cores - 1), reading->parts() - 1});
  for (size_t i = 0; i < helpers; ++i) reactor.post(task_of([reading] { reading->help(); }));
  reading->read();
  reading->wait();
  const int error = reading->error.load(std::memory_order_relaxed);
  if (error < 0) return true;
  errno = error;
  return false;
}

bool can_read_process(int64_t pid, Proof proof) {
  return read_memory(pid, proof, 0, nullptr, 0);
}

bool process_is_gone(int64_t pid) {
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return true;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  // After "(name)": state, then six numbers, then the flags; a process closes its sockets before it
  // becomes a zombie.
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string state, skipped;
  unsigned long flags = 0;
  rest >> state;
  for (int i = 0; i < 5; ++i) rest >> skipped;
  rest >> flags;
  constexpr unsigned long kExiting = 0x4;
  return state == "Z" || state == "X" || (flags & kExiting) != 0;
}

}  // namespace lockstep::inline v0::rpc::internal
