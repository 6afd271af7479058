// The memory limit of this process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::inline v0 {

struct MemoryLimit {
  uint64_t bytes = 0;
  std::optional<uint64_t> used;  // by all processes of the group
  std::string group;             // the cgroup's folder
  uint64_t id = 0;               // of the group, on this host
};

// The tightest limit of this process's control groups (v2, or v1's memory controller) and their
// parents; nullopt where no group has one. `root`: the parent of /proc and /sys, for tests.
std::optional<MemoryLimit> memory_limit(const std::filesystem::path& root = "/");

// The memory that processes of this host, or of this container, have together: the host's, lowered
// to memory_limit().
uint64_t host_memory_bytes();

}  // namespace lockstep::inline v0
