// Settings of glibc and libtorch that keep the memory freed by a training step for the next one,
// instead of returning it to the system and faulting it in anew.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lockstep/core/env.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Variables for the environment of a process that trains; those that `env` already has are left
// out. `allowed`: its memory limit in bytes (memory_limit.h); with little memory, blocks from 4 MiB
// on are returned to the system when they are freed, and must be faulted in anew. Pure.
LOCKSTEP_API std::map<std::string, std::string> memory_variables(
    const EnvLookup& env, std::optional<uint64_t> allowed = std::nullopt);

// The share of one of `processes` in the memory limit of this process's control group.
LOCKSTEP_API std::optional<uint64_t> allowed_memory(int processes);

// The same for this process, one of LOCAL_WORLD_SIZE (1), unless its environment says otherwise.
// Call it first in main(): before other threads exist, and before the first tensor. `lockstep run`
// has done it for its ranks.
LOCKSTEP_API void keep_freed_memory();

// Returns to the system what malloc keeps of freed memory by now: after something large was freed
// of which a step frees and takes nothing, such as the memory in which parameters were made. Takes
// milliseconds; later steps fault theirs in anew.
LOCKSTEP_API void return_freed_memory() noexcept;

}  // namespace lockstep::inline v0
