// --wdir: where the ranks work, and what the paths that the user typed are relative to. That is the
// folder in which the command was typed, whatever --wdir says; only the program is looked for in
// --wdir.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/cli/run/flags.h"
#include "lockstep/core/env.h"

namespace lockstep::inline v0::cli {

// The flags with the paths in them absolute, `here` before the relative ones. Pure.
RunFlags with_absolute_paths(RunFlags flags, const std::filesystem::path& here);

// The variables of docs/environment.md that have a relative path, with the absolute one. Pure.
std::map<std::string, std::string> absolute_variables(const EnvLookup& env,
                                                      const std::filesystem::path& here);

// Enters --wdir, if it is given, after both. It changes the process's environment, so no other
// thread may run yet.
// Throws: UsageError.
RunFlags in_working_directory(RunFlags flags);

}  // namespace lockstep::inline v0::cli
