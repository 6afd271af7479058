// The facts of this host that matter to a job of several ranks. They are looked up here and judged
// in checks.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/interfaces.h"
#include "lockstep/launch/mpi_family.h"

namespace lockstep::inline v0::cli {

// A process of this user that belongs to a job.
struct JobProcess {
  int pid = 0;
  std::string command;
  double age_s = 0;
  bool rank = false;         // it has a rank's environment; otherwise it is an agent
  bool left_behind = false;  // a rank whose agent is gone
};

// A library that is loaded at run time.
struct LibraryFacts {
  std::string file;   // the path where it was found
  std::string error;  // the reason why it cannot be loaded; "": it can
};

struct HostFacts {
  std::string version;  // Lockstep's
  std::string compiler;
  std::string kernels;              // the instruction set that they use (core/instruction_set.h)
  std::string kernels_error;        // why they use none, and what to do
  std::string libtorch;             // the path that the engine finds; "": none
  std::string engine;               // path; "": missing
  std::string engine_error;         // why the engine does not start, and what to do
  std::vector<std::string> builds;  // libtorch's releases for which it is installed; empty: a build

  std::vector<InterfaceAddress> interfaces;
  std::map<std::string, int> mtu;  // by interface
  std::string host_name;
  std::vector<std::string> resolved;  // the numeric addresses of host_name
  std::string resolve_error;          // the reason why there are none

  std::string clock_source;  // "tsc"; "": unknown
  double clock_drift = 0;    // the wall clock's against the monotonic one, as a fraction
  bool clock_steady = true;  // neither ran backwards
  int64_t unix_seconds = 0;

  std::optional<uint64_t> shm_size, shm_free;         // /dev/shm's, bytes; nullopt: not mounted
  std::string memfd_error;                            // "": memfds can be made, sealed and mapped
  std::optional<uint64_t> memlock;                    // RLIMIT_MEMLOCK, bytes; nullopt: unlimited
  std::optional<uint64_t> files, files_hard;          // RLIMIT_NOFILE
  std::optional<uint64_t> memory_limit, memory_used;  // the cgroup's, bytes
  uint64_t memory_free = 0;                           // MemAvailable, bytes

  int cpus_online = 1;
  std::vector<int> cpus_allowed;
  int cpus_usable = 1;  // cpus_allowed less a cgroup's quota
  double load = 0;      // over the last minute

  std::string huge_pages;           // the choice of transparent_hugepage/enabled
  std::string huge_pages_shmem;     // the choice of shmem_enabled
  std::optional<int> ptrace_scope;  // Yama's; nullopt: no Yama
  std::string reach_error;          // "": one rank may read another one's memory (process_vm_readv)

  std::vector<JobProcess> processes;
  std::map<launch::MpiFamily, LibraryFacts> mpi;
  std::optional<launch::MpiFamily> mpirun;  // the family of the one on PATH
  LibraryFacts nccl;
  std::map<std::string, std::string> variables;  // LOCKSTEP_* that change what a job does
};

// Looks the facts up. Does not throw for a fact that is unavailable.
// Cost: some tens of milliseconds.
HostFacts host_facts();

}  // namespace lockstep::inline v0::cli
