#include "lockstep/testing/network_namespaces.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::testing {
namespace {

// In a new thread, since namespaces belong to threads.
void in_thread(const std::function<void()>& fn) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      fn();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

std::string path_of(int fd) {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd);
}

UniqueFd open_own(const char* path) {
  UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) throw system_error(path, errno);
  return fd;
}

ino_t inode_of(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

std::string port_of(int host) {
  return "port" + std::to_string(host);
}

}  // namespace

std::string NetworkNamespaces::unavailable() {
  if (::geteuid() != 0) return "network namespaces need root";
  for (const char* program : {"ip", "nsenter", "sh"}) {
    try {
      find_program(program);
    } catch (const LaunchError&) {
      return std::string("network namespaces need ") + program + ", which is not on PATH";
    }
  }
  try {
    const NetworkNamespaces probe(1);
  } catch (const Error& error) {
    return std::string("network namespaces cannot be made here: ") + error.what();
  }
  return "";
}

NetworkNamespaces::Namespace NetworkNamespaces::make(const std::string& name) {
  Namespace made;
  in_thread([&] {
    if (::unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) throw system_error("unshare", errno);
    if (::sethostname(name.data(), name.size()) != 0) throw system_error("sethostname", errno);
    made.net = open_own("/proc/thread-self/ns/net");
    made.uts = open_own("/proc/thread-self/ns/uts");
  });
  return made;
}

NetworkNamespaces::NetworkNamespaces(int hosts) {
  if (hosts < 1 || hosts > 200) {
    throw InvalidArgument(std::to_string(hosts) + " hosts; 1 to 200 are possible");
  }
  switch_ = make("switch");
  std::string script = "ip link add bridge type bridge && ip link set bridge up";
  for (int host = 0; host < hosts; ++host) {
    hosts_.push_back(make(name(host)));
    script += " && ip link add " + port_of(host) + " type veth peer name eth0 netns " +
              path_of(hosts_.back().net.get()) + " && ip link set " + port_of(host) +
              " master bridge up";
  }
  run(switch_, script);
  for (int host = 0; host < hosts; ++host) {
    run(hosts_[static_cast<size_t>(host)], "ip link set lo up && ip address add " + address(host) +
                                               "/24 dev eth0 && ip link set eth0 up");
  }
}

NetworkNamespaces::~NetworkNamespaces() {
  try {
    const Deadline deadline = Deadline::seconds(5);
    bool left = true;
    while (left && !deadline.expired()) {
      left = false;
      for (int host = 0; host < size(); ++host) {
        for (const pid_t pid : processes(host)) {
          left = true;
          ::kill(pid, SIGKILL);
        }
      }
      if (left) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  } catch (const std::exception&) {
    // The namespaces go when the last of them has ended.
  }
}

std::string NetworkNamespaces::address(int host) const {
  return "10.77.0." + std::to_string(host + 1);
}

std::string NetworkNamespaces::name(int host) const {
  return "host" + std::to_string(host);
}

std::vector<std::string> NetworkNamespaces::prefix_of(const Namespace& space) {
  return {"nsenter", "--net=" + path_of(space.net.get()), "--uts=" + path_of(space.uts.get()),
          "--"};
}

std::vector<std::string> NetworkNamespaces::prefix(int host) const {
  return prefix_of(hosts_.at(static_cast<size_t>(host)));
}

std::string NetworkNamespaces::shell_prefix(int host) const {
  std::string text;
  for (const std::string& word : prefix(host)) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::function<void()> NetworkNamespaces::entrance(int host) const {
  const Namespace& space = hosts_.at(static_cast<size_t>(host));
  return [net = path_of(space.net.get()), uts = path_of(space.uts.get())] {
    for (const auto& [path, kind] : {std::pair(&net, CLONE_NEWNET), std::pair(&uts, CLONE_NEWUTS)})
      if (::setns(open_own(path->c_str()).get(), kind) != 0) throw system_error("setns", errno);
  };
}

void NetworkNamespaces::on(int host, const std::function<void()>& fn) const {
  in_thread([&] {
    entrance(host)();
    fn();
  });
}

void NetworkNamespaces::run(const Namespace& space, const std::string& script) const {
  SubprocessOptions options;
  options.command = prefix_of(space);
  for (const char* word : {"sh", "-c"}) options.command.emplace_back(word);
  options.command.push_back("exec 2>&1; " + script);
  Pipe pipe = make_pipe();
  options.stdout_fd = pipe.write.get();
  Subprocess process(options);
  pipe.write.reset();
  std::string output;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(pipe.read.get(), buffer, sizeof buffer)) > 0;) {
    output.append(buffer, static_cast<size_t>(n));
  }
  if (process.wait(Deadline::seconds(30)).ok()) return;
  while (!output.empty() && output.back() == '\n') output.pop_back();
  throw LaunchError(script.substr(0, 100) + ": " + output);
}

void NetworkNamespaces::cut(int host) {
  run(switch_, "ip link set " + port_of(host) + " down");
}

void NetworkNamespaces::mend(int host) {
  run(switch_, "ip link set " + port_of(host) + " up");
}

void NetworkNamespaces::shape(const std::string& rate) {
  // The bucket holds several large segments, or the rate is not reached.
  const auto limit = [&](const std::string& device) {
    return "tc qdisc replace dev " + device + " root tbf rate " + rate +
           " burst 512kb latency 50ms";
  };
  // Where a machine has BBR instead of Linux's usual choice, its pauses of a millisecond would be
  // measured.
  const std::string cubic =
      " && { echo cubic > /proc/sys/net/ipv4/tcp_congestion_control || true; }";
  for (int host = 0; host < size(); ++host) {
    run(hosts_[static_cast<size_t>(host)], limit("eth0") + cubic);
    run(switch_, limit(port_of(host)));
  }
}

uint64_t NetworkNamespaces::bytes_sent(int host) const {
  uint64_t sent = 0;
  on(host, [&] {
    std::ifstream table("/proc/thread-self/net/dev");
    for (std::string line; std::getline(table, line);) {
      const auto colon = line.find("eth0:");
      if (colon == std::string::npos) continue;
      std::istringstream numbers(line.substr(colon + 5));
      for (int column = 0; column <= 8; ++column) numbers >> sent;  // the ninth: bytes transmitted
    }
  });
  return sent;
}

std::vector<pid_t> NetworkNamespaces::processes(int host) const {
  const ino_t wanted = inode_of(path_of(hosts_.at(static_cast<size_t>(host)).net.get()));
  std::vector<pid_t> found;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return found;
  while (const dirent* entry = ::readdir(proc)) {
    const auto pid = parse_int(entry->d_name, 1);
    if (pid && inode_of(std::string("/proc/") + entry->d_name + "/ns/net") == wanted) {
      found.push_back(static_cast<pid_t>(*pid));
    }
  }
  ::closedir(proc);
  return found;
}

}  // namespace lockstep::inline v0::testing
