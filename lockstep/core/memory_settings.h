// Settings of glibc and libtorch that keep the memory which a training step frees for the next one,
// instead of giving it back to the system and having it faulted in anew.
#pragma once

#include <map>
#include <string>

#include "lockstep/core/env.h"

namespace lockstep {

// For the environment of a process that trains; those that `env` has already are left out.
std::map<std::string, std::string> memory_variables(const EnvLookup& env);

// The same for this process, as far as its environment does not say otherwise. To be called first
// in main(): before other threads are there, and before the first tensor. `lockstep run` has done
// it for its ranks.
void keep_freed_memory();

}  // namespace lockstep
