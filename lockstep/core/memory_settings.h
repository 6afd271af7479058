// Settings of glibc and libtorch that keep the memory which a training step frees for the next one,
// instead of giving it back to the system and having it faulted in anew.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lockstep/core/env.h"

namespace lockstep {

// For the environment of a process that trains; those that `env` has already are left out. `allowed`: bytes
// that it may take (memory_limit.h); where these are few, blocks from 4 MiB go back to the system as they are
// freed, and have to be faulted in anew. Pure.
std::map<std::string, std::string> memory_variables(const EnvLookup& env,
                                                    std::optional<uint64_t> allowed = std::nullopt);

// Of what this process's control group may take, the part of one of `processes`.
std::optional<uint64_t> allowed_memory(int processes);

// The same for this process, one of LOCAL_WORLD_SIZE (1), as far as its environment does not say otherwise.
// To be called first in main(): before other threads are there, and before the first tensor. `lockstep run`
// has done it for its ranks.
void keep_freed_memory();

}  // namespace lockstep
