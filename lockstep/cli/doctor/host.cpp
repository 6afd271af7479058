#include "lockstep/cli/doctor/host.h"
#include "lockstep/cli/child_output.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "lockstep/cli/commands.h"
#include "lockstep/cli/libtorch_choice.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/instruction_set.h"
#include "lockstep/core/memory_limit.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/trace/trace_file.h"

namespace lockstep::inline v0::cli {
namespace {

constexpr auto kClockSample = std::chrono::milliseconds(30);
constexpr double kProbeTimeout = 10;  // seconds, for a child process

std::string first_line(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::optional<uint64_t> number_in(const std::filesystem::path& file) {
  const auto value = parse_int(first_line(file), 0);
  return value ? std::optional(static_cast<uint64_t>(*value)) : std::nullopt;
}

std::string whole(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Turns "always [madvise] never" into "madvise".
std::string chosen(const std::string& line) {
  const auto begin = line.find('['), end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos) return "";
  return line.substr(begin + 1, end - begin - 1);
}

// Runs `body` in a child, and returns its output; "?" when it does not end in time. The child makes
// a few calls that are not async-signal-safe, which is safe because this program has one thread.
template <typename Body>
std::string in_child(Body body) {
  Pipe pipe = make_pipe();
  const pid_t child = ::fork();
  if (child < 0) return "fork: " + std::string(std::strerror(errno));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string text = body();
    [[maybe_unused]] const ssize_t n = ::write(pipe.write.get(), text.data(), text.size());
    ::_exit(0);
  }
  pipe.write.reset();
  std::string text;
  const Deadline deadline = Deadline::seconds(kProbeTimeout);
  while (true) {
    pollfd waiting{pipe.read.get(), POLLIN, 0};
    if (::poll(&waiting, 1, deadline.poll_ms()) <= 0) {
      text = "no answer within " + std::to_string(static_cast<int>(kProbeTimeout)) + " s";
      ::kill(child, SIGKILL);
      break;
    }
    char buffer[4096];
    const ssize_t n = ::read(pipe.read.get(), buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && text.empty())
    text = "error killed by signal " + std::to_string(WTERMSIG(status));
  return text;
}

// Loading runs code of the library's authors, so it is not done in this process.
LibraryFacts probe_library(const char* name) {
  const std::string text = in_child([name]() -> std::string {
    void* library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = ::dlerror();
      return std::string("error ") + (reason != nullptr ? reason : name);
    }
    link_map* map = nullptr;
    if (::dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || map == nullptr)
      return name;
    return map->l_name;
  });
  static constexpr std::string_view kError = "error ";
  if (text.starts_with(kError)) return {"", text.substr(kError.size())};
  return {text, ""};
}

// A child reads another child's memory, as ranks do.
std::string probe_reach() {
  Pipe hold = make_pipe();
  volatile int word = 0;  // at the same address in all three
  const pid_t target = ::fork();
  if (target < 0) return std::strerror(errno);
  if (target == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    hold.write.reset();
    word = 4711;
    char byte = 0;
    [[maybe_unused]] const ssize_t n = ::read(hold.read.get(), &byte, 1);
    ::_exit(0);
  }
  std::string error = in_child([&]() -> std::string {
    int seen = 0;
    iovec to{&seen, sizeof seen}, from{const_cast<int*>(&word), sizeof word};
    // The other child may not have written yet.
    for (int i = 0; i < 1000 && seen != 4711; ++i) {
      if (::process_vm_readv(target, &to, 1, &from, 1, 0) < 0) return std::strerror(errno);
      ::usleep(1000);
    }
    return seen == 4711 ? "" : "it reads something else";
  });
  hold.write.reset();
  ::waitpid(target, nullptr, 0);
  return error;
}

std::string probe_memfd() {
  const UniqueFd fd(::memfd_create("lockstep-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_error("memfd_create", errno).what();
  if (::ftruncate(fd.get(), 4096) != 0) return system_error("ftruncate", errno).what();
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return system_error("sealing", errno).what();
  void* base = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return system_error("mmap", errno).what();
  ::munmap(base, 4096);
  return "";
}

void look_at_names(HostFacts& facts) {
  facts.host_name = trace::host_name();
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int code = ::getaddrinfo(facts.host_name.c_str(), nullptr, &hints, &list);
  if (code != 0) {
    facts.resolve_error = ::gai_strerror(code);
    return;
  }
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    char text[NI_MAXHOST] = {};
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, nullptr, 0,
                      NI_NUMERICHOST) == 0 &&
        std::find(facts.resolved.begin(), facts.resolved.end(), text) == facts.resolved.end())
      facts.resolved.emplace_back(text);
  }
  ::freeaddrinfo(list);
}

void look_at_interfaces(HostFacts& facts) {
  try {
    facts.interfaces = interface_addresses();
  } catch (const Error&) {
    return;  // none are visible
  }
  for (const InterfaceAddress& one : facts.interfaces) {
    if (const auto mtu = number_in("/sys/class/net/" + one.interface + "/mtu"))
      facts.mtu[one.interface] = static_cast<int>(*mtu);
  }
}

void look_at_clocks(HostFacts& facts) {
  facts.clock_source =
      first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  const auto read = [](clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  };
  const int64_t wall = read(CLOCK_REALTIME), steady = read(CLOCK_MONOTONIC);
  std::this_thread::sleep_for(kClockSample);
  const int64_t walls = read(CLOCK_REALTIME) - wall, steadies = read(CLOCK_MONOTONIC) - steady;
  facts.clock_steady = walls > 0 && steadies > 0;
  if (steadies > 0)
    facts.clock_drift = static_cast<double>(walls - steadies) / static_cast<double>(steadies);
  facts.unix_seconds = wall / 1'000'000'000;
}

std::optional<uint64_t> limit_of(const rlim_t value) {
  return value == RLIM_INFINITY ? std::nullopt : std::optional<uint64_t>(value);
}

void look_at_memory(HostFacts& facts) {
  struct statvfs shm{};
  if (::statvfs("/dev/shm", &shm) == 0 && shm.f_blocks > 0) {
    facts.shm_size = uint64_t{shm.f_blocks} * shm.f_frsize;
    facts.shm_free = uint64_t{shm.f_bavail} * shm.f_frsize;
  }
  facts.memfd_error = probe_memfd();
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) facts.memlock = limit_of(limit.rlim_cur);
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.files = limit_of(limit.rlim_cur);
    facts.files_hard = limit_of(limit.rlim_max);
  }
  if (const auto limit = memory_limit()) {
    facts.memory_limit = limit->bytes;
    facts.memory_used = limit->used;
  }
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemAvailable:"))
      facts.memory_free = std::strtoull(line.c_str() + sizeof "MemAvailable:", nullptr, 10) << 10;
  }
  facts.huge_pages = chosen(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  facts.huge_pages_shmem = chosen(first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  if (const auto scope = number_in("/proc/sys/kernel/yama/ptrace_scope"))
    facts.ptrace_scope = static_cast<int>(*scope);
  facts.reach_error = probe_reach();
}

// The fields of /proc/PID/stat.
struct ProcessStat {
  int parent = 0;
  double age_s = 0;
};

std::optional<ProcessStat> stat_of(int pid) {
  const std::string text = whole("/proc/" + std::to_string(pid) + "/stat");
  const auto after_name = text.rfind(')');
  if (after_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(after_name + 1));
  std::string state, skipped;
  ProcessStat stat;
  fields >> state >> stat.parent;
  for (int i = 5; i < 22; ++i) fields >> skipped;
  double started = 0, uptime = 0;
  fields >> started;
  std::ifstream("/proc/uptime") >> uptime;
  stat.age_s = std::max(0.0, uptime - started / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  return fields ? std::optional(stat) : std::nullopt;
}

bool has_rank_environment(int pid) {
  const std::string text = whole("/proc/" + std::to_string(pid) + "/environ");
  static const std::string kName = "LOCKSTEP_STORE=";
  return text.starts_with(kName) || text.find('\0' + kName) != std::string::npos;
}

std::string program_of(int pid) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", error).string();
}

// Whether the process that started this rank, and the processes between, are gone.
bool is_left_behind(int pid) {
  int ancestor = pid;
  while (ancestor > 1 && has_rank_environment(ancestor)) {
    const auto stat = stat_of(ancestor);
    if (!stat) return false;
    ancestor = stat->parent;
  }
  if (ancestor > 1) return false;
  // In a container the launcher may be process 1.
  const std::string first = program_of(1);
  return first.empty() || (!first.ends_with("/lockstep") && first != program_of(pid));
}

std::vector<JobProcess> job_processes() {
  std::vector<JobProcess> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = parse_int(entry.path().filename().string(), 1, 1 << 30);
    struct stat owner{};
    if (!pid || *pid == ::getpid() || ::stat(entry.path().c_str(), &owner) != 0 ||
        owner.st_uid != ::geteuid())
      continue;
    JobProcess process;
    process.pid = static_cast<int>(*pid);
    std::string command = whole(entry.path() / "cmdline");
    if (command.empty()) continue;  // a zombie, or the kernel's
    std::replace(command.begin(), command.end(), '\0', ' ');
    process.rank = has_rank_environment(process.pid);
    const std::string program = program_of(process.pid);
    const bool agent = program.ends_with("/lockstep") && command.find(" run ") != std::string::npos;
    if (!process.rank && !agent) continue;
    if (command.size() > 60) command = command.substr(0, 57) + "...";
    while (!command.empty() && command.back() == ' ') command.pop_back();
    process.command = command;
    if (const auto stat = stat_of(process.pid)) process.age_s = stat->age_s;
    process.left_behind = process.rank && is_left_behind(process.pid);
    found.push_back(process);
  }
  return found;
}

std::string libtorch_of(const EngineStart& start) {
  Pipe out = make_pipe();
  SubprocessOptions options;
  options.command = {start.program.string()};
  options.stdout_fd = out.write.get();
  options.env = start.environment.value_or(launch::current_environment());
  // The loader then lists the libraries, as ldd does, and starts nothing.
  options.env->emplace_back("LD_TRACE_LOADED_OBJECTS=1");
  std::string text;
  try {
    Subprocess process(options);
    out.write.reset();
    const Deadline deadline = Deadline::seconds(kProbeTimeout);
    text = read_all(out.read.get(), deadline);
    process.wait(deadline);
  } catch (const Error&) {
    return "";
  }
  const std::string arrow = " => ";
  const auto name = text.find("libtorch_cpu.so");
  if (name == std::string::npos) return "";
  const auto line = text.substr(name, text.find('\n', name) - name);
  const auto at = line.find(arrow), end = line.rfind(" (");
  if (at == std::string::npos || end == std::string::npos || end < at) return "";
  const std::filesystem::path file = line.substr(at + arrow.size(), end - at - arrow.size());
  const std::filesystem::path folder = file.parent_path().lexically_normal();
  const auto libtorch = libtorch_in(folder, "");
  std::string text_of_path = folder.string();
  if (libtorch && !libtorch->version.empty())
    text_of_path = libtorch->version + " in " + text_of_path;
  if (start.choice) text_of_path += " (" + start.choice->libtorch.found_by + ")";
  return text_of_path;
}

void look_at_versions(HostFacts& facts) {
  facts.version = LOCKSTEP_VERSION;
#if defined(__clang__)
  facts.compiler = "clang " __clang_version__;
#else
  facts.compiler = "gcc " __VERSION__;
#endif
  try {
    facts.kernels = name_of(instruction_set_used(process_env()));
  } catch (const InvalidArgument& error) {
    facts.kernels_error = error.what();
  }
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return;
  constexpr const char* kEngine = "lockstep-engine";
  for (const TorchBuild& build : torch_builds(self.parent_path().parent_path(), kEngine))
    facts.builds.insert(facts.builds.begin(), build.minor);
  if (facts.builds.empty() && ::access(program_path(self, kEngine).c_str(), X_OK) != 0) return;
  try {
    const EngineStart start = engine_start(self, kEngine, process_env());
    facts.engine = start.program.string();
    facts.libtorch = libtorch_of(start);
  } catch (const InvalidArgument& problem) {
    facts.engine_error = problem.what();
  }
}

void look_at_variables(HostFacts& facts) {
  for (const std::string& line : launch::current_environment()) {
    const auto equals = line.find('=');
    const std::string name = line.substr(0, equals);
    if (equals == std::string::npos || !name.starts_with("LOCKSTEP_")) continue;
    facts.variables[name] = name == "LOCKSTEP_SECRET" ? "(set)" : line.substr(equals + 1);
  }
}

}  // namespace

HostFacts host_facts() {
  HostFacts facts;
  look_at_versions(facts);
  look_at_interfaces(facts);
  look_at_names(facts);
  look_at_clocks(facts);
  look_at_memory(facts);
  facts.cpus_online = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  facts.cpus_allowed = allowed_cpus();
  facts.cpus_usable = usable_cpu_count();
  ::getloadavg(&facts.load, 1);
  facts.processes = job_processes();
  for (const launch::MpiFamily family : launch::kMpiFamilies) {
    LibraryFacts& library = facts.mpi[family];
    for (const std::string& file : launch::mpi_library_files(family)) {
      library = probe_library(file.c_str());
      if (library.error.empty()) break;
    }
  }
  try {
    facts.mpirun = launch::find_mpirun(process_env()).family;
  } catch (const Error&) {
    facts.mpirun.reset();
  }
  facts.nccl = probe_library(process_env()("LOCKSTEP_NCCL").value_or("libnccl.so.2").c_str());
  look_at_variables(facts);
  return facts;
}

}  // namespace lockstep::inline v0::cli
