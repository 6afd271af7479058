// Which Python `lockstep export` starts: one whose torch is of the release that Lockstep is built for.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"

namespace lockstep::inline v0::cli {

// A Python that was looked at.
struct FoundPython {
  std::filesystem::path program;
  std::string torch;  // "2.13.0+cpu"; "": it has none
};

// bin/python3 of the environment that has the wheel `torch`, PREFIX/lib/python3.x/site-packages/torch; empty where the
// folder is no wheel's. Pure.
std::filesystem::path python_of_wheel(const std::filesystem::path& torch);

// The first whose torch is of one of the minor versions; nullopt: there is none. Pure.
std::optional<FoundPython> choose_python(const std::vector<FoundPython>& found,
                                         const std::vector<std::string>& minors);
// Why there is none, and what to do: one line. `named`: by --python. Pure.
std::string no_python(const std::vector<FoundPython>& found, const std::vector<std::string>& minors,
                      bool named);

// The libtorch version and its torch's folder, from the export program's folder in a build tree.
struct BuiltWith {
  std::string version;
  std::filesystem::path torch;
};

// Where a Python may be, in this order: beside the wheel that LOCKSTEP_LIBTORCH names; beside the libtorch of the build or
// of the installed builds; the active environment; .venv of the repository that has the build; python3 of PATH. Only
// programs that exist, each once.
std::vector<std::filesystem::path> python_places(const std::filesystem::path& lockstep,
                                                 const std::optional<BuiltWith>& built,
                                                 const EnvLookup& env);

// The version of the torch that a Python would import, which is not imported for that; "": none, or it cannot be started.
std::string torch_version_of(const std::filesystem::path& python);

}  // namespace lockstep::inline v0::cli
