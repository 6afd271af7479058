#include "lockstep/cli/doctor/checks.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/text.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::cli {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

std::string bytes_text(uint64_t bytes) {
  if (bytes >= kGiB)
    return fixed(static_cast<double>(bytes) / static_cast<double>(kGiB), 1) + " GiB";
  if (bytes >= kMiB)
    return fixed(static_cast<double>(bytes) / static_cast<double>(kMiB), 0) + " MiB";
  return fixed(static_cast<double>(bytes) / 1024, 0) + " KiB";
}

std::string limit_text(const std::optional<uint64_t>& bytes) {
  return bytes ? bytes_text(*bytes) : "unlimited";
}

bool has(const std::vector<InterfaceAddress>& all, const std::string& address) {
  return std::any_of(all.begin(), all.end(),
                     [&](const InterfaceAddress& one) { return one.address == address; });
}

Finding judge_versions(const HostFacts& facts) {
  Finding finding{Level::kOk, "versions",
                  "lockstep " + facts.version + ", " + facts.compiler +
                      (facts.kernels.empty() ? "" : ", kernels with " + facts.kernels),
                  ""};
  if (!facts.builds.empty())
    finding.found += "; installed for libtorch " + joined(facts.builds, " and ");
  if (!facts.kernels_error.empty()) {
    finding.level = Level::kProblem;
    finding.todo = facts.kernels_error;
  } else if (!facts.engine_error.empty()) {
    finding.level = Level::kProblem;
    finding.todo = facts.engine_error;
  } else if (facts.engine.empty()) {
    finding.level = Level::kWarning;
    finding.found += "; the engine (train, eval, predict, ...) is not installed beside it";
    finding.todo = "build the target lockstep-engine, or run scripts/quickstart";
  } else {
    finding.found += facts.libtorch.empty() ? "; libtorch was not found by the engine"
                                            : "; libtorch " + facts.libtorch;
    if (facts.libtorch.empty()) {
      finding.level = Level::kProblem;
      finding.todo = "put libtorch's lib folder on LD_LIBRARY_PATH, or build Lockstep again";
    }
  }
  return finding;
}

Finding judge_interfaces(const HostFacts& facts) {
  std::vector<std::string> words;
  for (const InterfaceAddress& one : facts.interfaces) {
    const auto mtu = facts.mtu.find(one.interface);
    words.push_back(one.interface + " " + one.address +
                    (mtu == facts.mtu.end() ? "" : " (MTU " + std::to_string(mtu->second) + ")"));
  }
  const auto candidates = candidate_addresses(facts.interfaces);
  Finding finding{Level::kOk, "interfaces", joined(words), ""};
  if (facts.interfaces.empty()) {
    finding = {Level::kProblem, "interfaces", "none is up, not even the loopback one",
               "ip link set lo up; ranks of one host meet there"};
  } else if (std::none_of(facts.interfaces.begin(), facts.interfaces.end(),
                          [](const InterfaceAddress& one) { return one.loopback; })) {
    finding.level = Level::kProblem;
    finding.todo = "ip link set lo up; ranks of one host meet at the loopback interface";
  } else if (candidates.empty()) {
    finding.level = Level::kWarning;
    finding.todo = "no other host can reach this one; one-host jobs work";
  } else {
    finding.found += "; other hosts would use " + candidates.front();
    if (candidates.size() > 1)
      finding.todo = "if another one is meant, lockstep run --interface chooses it";
  }
  return finding;
}

Finding judge_mtu(const HostFacts& facts) {
  const auto candidates = candidate_addresses(facts.interfaces);
  const auto interface =
      candidates.empty() ? std::nullopt : interface_of(facts.interfaces, candidates.front());
  if (!interface || !facts.mtu.contains(*interface))
    return {Level::kOk, "MTU", "no interface to other hosts", ""};
  const int mtu = facts.mtu.at(*interface);
  Finding finding{Level::kOk, "MTU", *interface + " " + std::to_string(mtu), ""};
  if (mtu < 1280) {
    finding.level = Level::kWarning;
    finding.todo = "small packets cost processor time; is that a tunnel? Raise it if all hosts can";
  }
  return finding;
}

Finding judge_names(const HostFacts& facts) {
  Finding finding{Level::kOk, "name", facts.host_name, ""};
  if (facts.resolved.empty()) {
    finding.found += " does not resolve (" + facts.resolve_error + ")";
    finding.todo =
        "nothing for Lockstep, which uses numeric addresses; gloo, MPI and torchrun may want it in "
        "/etc/hosts";
    return finding;
  }
  finding.found += " resolves to " + joined(facts.resolved);
  const bool elsewhere =
      std::none_of(facts.resolved.begin(), facts.resolved.end(), [&](const std::string& address) {
        return is_loopback(address) || has(facts.interfaces, address);
      });
  const bool only_loopback =
      std::all_of(facts.resolved.begin(), facts.resolved.end(),
                  [](const std::string& address) { return is_loopback(address); });
  if (elsewhere) {
    finding.level = Level::kWarning;
    finding.found += ", which is none of this host's addresses";
    finding.todo = "correct /etc/hosts or the DNS; Lockstep does not need it, gloo and MPI may";
  } else if (only_loopback) {
    finding.todo =
        "nothing for Lockstep; for jobs of gloo or MPI over several hosts the name should not mean "
        "the loopback interface";
  }
  return finding;
}

Finding judge_clock(const HostFacts& facts) {
  Finding finding{Level::kOk, "clock",
                  "source " + (facts.clock_source.empty() ? "unknown" : facts.clock_source), ""};
  constexpr int64_t kYear2024 = 1'704'067'200;
  if (!facts.clock_steady) {
    finding.level = Level::kProblem;
    finding.found += ", and it ran backwards while we looked";
    finding.todo =
        "something sets the clock in steps; deadlines and logs are wrong: use chronyd or ntpd";
  } else if (facts.unix_seconds < kYear2024) {
    finding.level = Level::kProblem;
    finding.found += ", set to a time before 2024";
    finding.todo = "set the clock: date, or chronyd";
  } else if (std::abs(facts.clock_drift) > 0.01) {
    finding.level = Level::kWarning;
    finding.found += ", wall and monotonic clock differ by " + percent(facts.clock_drift, 1);
    finding.todo = "the clock is being set; compare times of several hosts with care";
  } else if (!facts.clock_source.empty() && facts.clock_source != "tsc" &&
             facts.clock_source != "kvm-clock" && facts.clock_source != "arch_sys_counter") {
    finding.level = Level::kWarning;
    finding.todo = "reading this clock costs a system call or more; small collectives get slower";
  }
  return finding;
}

Finding judge_shared_memory(const HostFacts& facts) {
  Finding finding{Level::kOk, "shared memory", "memfds work", ""};
  if (!facts.memfd_error.empty()) {
    return {Level::kProblem, "shared memory", "memfds do not work: " + facts.memfd_error,
            "backend shm needs memfd_create and sealing; a container's seccomp profile may forbid "
            "them. LOCKSTEP_BACKEND=gloo does without"};
  }
  finding.found += facts.shm_size ? "; /dev/shm " + bytes_text(*facts.shm_size) + ", " +
                                        bytes_text(facts.shm_free.value_or(0)) + " free"
                                  : "; no /dev/shm";
  if (!facts.shm_size || *facts.shm_size < 256 * kMiB)
    finding.todo =
        "nothing for Lockstep, which does not use /dev/shm; PyTorch's loaders and NCCL do (docker "
        "run --shm-size)";
  return finding;
}

Finding judge_limits(const HostFacts& facts) {
  Finding finding{Level::kOk, "limits",
                  "open files " + (facts.files ? std::to_string(*facts.files) : "unlimited") +
                      ", locked memory " + limit_text(facts.memlock),
                  ""};
  if (facts.files && *facts.files < 1024) {
    finding.level = *facts.files < 128 ? Level::kProblem : Level::kWarning;
    finding.todo = "ulimit -n 4096; a rank needs a few descriptors for every peer";
  } else if (facts.memlock && *facts.memlock < 64 * kMiB) {
    finding.todo =
        "nothing for Lockstep, which locks no memory; MPI over InfiniBand and RDMA want ulimit -l "
        "unlimited";
  }
  return finding;
}

Finding judge_memory(const HostFacts& facts) {
  Finding finding{Level::kOk, "memory", bytes_text(facts.memory_free) + " available", ""};
  uint64_t left = facts.memory_free;
  if (facts.memory_limit) {
    const uint64_t used = facts.memory_used.value_or(0);
    const uint64_t in_group = *facts.memory_limit > used ? *facts.memory_limit - used : 0;
    finding.found +=
        "; the cgroup may use " + bytes_text(*facts.memory_limit) + ", uses " + bytes_text(used);
    left = std::min(left, in_group);
  }
  if (left < kGiB) {
    finding.level = left < kGiB / 4 ? Level::kProblem : Level::kWarning;
    finding.todo =
        "a rank takes about 200 MiB before its model; end other programs, or raise the limit, or "
        "the kernel kills ranks";
  }
  return finding;
}

Finding judge_processors(const HostFacts& facts) {
  const int allowed = static_cast<int>(facts.cpus_allowed.size());
  Finding finding{Level::kOk, "processors",
                  std::to_string(facts.cpus_usable) + " usable of " +
                      std::to_string(facts.cpus_online) + " (" + std::to_string(allowed) +
                      " in the affinity mask), load " + fixed(facts.load, 1),
                  ""};
  if (allowed < facts.cpus_online && facts.cpus_usable == allowed) {
    finding.todo = "this shell is confined to some processors (taskset, a container, Slurm)";
  } else if (facts.cpus_usable < allowed) {
    finding.todo = "a cgroup's quota: more ranks or threads than " +
                   std::to_string(facts.cpus_usable) + " are stopped part of the time";
  }
  if (facts.load > 1.5 * std::max(1, facts.cpus_usable)) {
    finding.level = Level::kWarning;
    finding.todo = "others compute here: ranks will wait for each other; see what top shows";
  }
  return finding;
}

Finding judge_huge_pages(const HostFacts& facts) {
  Finding finding{Level::kOk, "huge pages",
                  "transparent: " + (facts.huge_pages.empty() ? "unknown" : facts.huge_pages) +
                      ", shared memory: " +
                      (facts.huge_pages_shmem.empty() ? "unknown" : facts.huge_pages_shmem),
                  ""};
  if (facts.huge_pages == "never")
    finding.todo =
        "large tensors are a little faster with: echo madvise > "
        "/sys/kernel/mm/transparent_hugepage/enabled";
  return finding;
}

Finding judge_reach(const HostFacts& facts) {
  Finding finding{Level::kOk, "rank to rank", "one rank may read another one's memory", ""};
  if (facts.ptrace_scope)
    finding.found += " (ptrace_scope " + std::to_string(*facts.ptrace_scope) + ")";
  if (facts.reach_error.empty()) return finding;
  finding.level = Level::kWarning;
  finding.found = "process_vm_readv between ranks: " + facts.reach_error;
  if (facts.ptrace_scope)
    finding.found += " (ptrace_scope " + std::to_string(*facts.ptrace_scope) + ")";
  finding.todo =
      "large tensors are copied once more, but in an all_reduce; sysctl "
      "kernel.yama.ptrace_scope=0, or docker run "
      "--cap-add SYS_PTRACE, spares it. Symmetric tensors do not need it";
  return finding;
}

Finding judge_leftovers(const HostFacts& facts) {
  std::vector<std::string> left, running;
  for (const JobProcess& process : facts.processes) {
    const std::string text = std::to_string(process.pid) + " " + process.command + " (" +
                             duration_text(process.age_s) + ")";
    (process.left_behind ? left : running).push_back(text);
  }
  if (!left.empty()) {
    return {Level::kWarning, "processes", "ranks whose launcher is gone: " + joined(left),
            "end them: kill PID; they hold memory and processors"};
  }
  if (running.empty()) return {Level::kOk, "processes", "no job of this user runs here", ""};
  if (running.size() > 8) {
    const size_t more = running.size() - 8;
    running.resize(8);
    running.push_back("and " + std::to_string(more) + " more");
  }
  return {Level::kOk, "processes", "running jobs: " + joined(running), ""};
}

Finding judge_mpi(const HostFacts& facts) {
  std::vector<std::string> there, missing;
  for (const auto& [family, library] : facts.mpi) {
    if (library.error.empty())
      there.push_back(std::string(to_string(family)) + ", " + library.file);
    else
      missing.push_back(library.error);
  }
  if (there.empty()) {
    return {Level::kOk, "backend mpi", "not available: " + joined(missing),
            "apt install openmpi-bin, or apt install mpich, if it is wanted"};
  }
  Finding finding{Level::kOk, "backend mpi", "available: " + joined(there), ""};
  if (!facts.mpirun) {
    finding.found += "; no mpirun";
    return finding;
  }
  finding.found += std::string("; mpirun is ") + to_string(*facts.mpirun) + "'s";
  const auto library = facts.mpi.find(*facts.mpirun);
  if (library == facts.mpi.end() || !library->second.error.empty()) {
    finding.level = Level::kWarning;
    finding.found += ", whose library is missing";
    finding.todo = std::string("apt install ") + launch::mpi_package(*facts.mpirun) +
                   ", or name the other mpirun by LOCKSTEP_MPIRUN";
  }
  return finding;
}

void judge_backends(const HostFacts& facts, std::vector<Finding>& findings) {
  findings.push_back({facts.memfd_error.empty() ? Level::kOk : Level::kProblem, "backend shm",
                      facts.memfd_error.empty()
                          ? std::string("available: ranks of one host") +
                                (facts.reach_error.empty() ? ", any tensor read in place"
                                                           : ", symmetric tensors read in place")
                          : "not available, see shared memory",
                      ""});
  const bool hosts = !candidate_addresses(facts.interfaces).empty();
  const std::string reach = hosts ? "" : "; this one has no interface to others";
  findings.push_back({Level::kOk, "backend tcp",
                      "built in: ranks of several hosts, which prove the job's secret" + reach,
                      ""});
  findings.push_back({Level::kOk, "backend hierarchical",
                      "built in: shm inside a host; tcp, gloo or MPI between hosts" + reach, ""});
  findings.push_back(
      {Level::kOk, "backend gloo", "built in (libtorch's): ranks of several hosts" + reach, ""});
  findings.push_back(judge_mpi(facts));
  if (facts.nccl.error.empty()) {
    findings.push_back({Level::kOk, "backend nccl",
                        "NCCL is there: " + facts.nccl.file + " (needs a libtorch with CUDA)", ""});
  } else {
    findings.push_back({Level::kOk, "backend nccl", "not available: " + facts.nccl.error, ""});
  }
}

}  // namespace

std::vector<Finding> judge(const HostFacts& facts) {
  std::vector<Finding> findings = {
      judge_versions(facts),   judge_interfaces(facts), judge_mtu(facts),
      judge_names(facts),      judge_clock(facts),      judge_shared_memory(facts),
      judge_limits(facts),     judge_memory(facts),     judge_processors(facts),
      judge_huge_pages(facts), judge_reach(facts),      judge_leftovers(facts)};
  judge_backends(facts, findings);
  if (!facts.variables.empty()) {
    std::vector<std::string> words;
    for (const auto& [name, value] : facts.variables) words.push_back(name + "=" + value);
    findings.push_back({Level::kOk, "environment", joined(words), ""});
  }
  return findings;
}

std::vector<Finding> check_host() {
  return judge(host_facts());
}

}  // namespace lockstep::inline v0::cli
