// Which of the installed builds of a program a command starts, and with which libtorch.
//
// A program with libtorch fits one minor version of it. An installation may have several, each in
// libexec/lockstep/torch-MINOR/; libtorch itself is usually not part of it, and found when the
// command runs: in a Python wheel, in a folder, or where the loader looks. A build tree has one
// program, libexec/lockstep/NAME, which knows its libtorch.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"

namespace lockstep::inline v0::cli {

// A build that is installed.
struct TorchBuild {
  std::string minor;             // libtorch's: "2.13"
  std::filesystem::path folder;  // .../libexec/lockstep/torch-2.13
};

// A libtorch that was found.
struct Libtorch {
  std::filesystem::path lib;  // the folder with libtorch_cpu.so
  std::string version;        // "2.13.0+cpu"; "": unknown
  std::string found_by;       // "LOCKSTEP_LIBTORCH", "python3", ...
  // The build in or behind whose folder it is, and whose programs find it by themselves; "": none.
  std::string of_build;
};

struct LibtorchChoice {
  TorchBuild build;
  Libtorch libtorch;
};

// "2.13" of "2.13.0+cpu"; "" where there is none.
std::string minor_of(const std::string& version);

// The first libtorch for which there is a build; nullopt where there is none. Pure.
std::optional<LibtorchChoice> choose_libtorch(const std::vector<TorchBuild>& builds,
                                              const std::vector<Libtorch>& found);

// Why there is none, and what to do: one line. Pure.
std::string no_libtorch(const std::vector<TorchBuild>& builds, const std::vector<Libtorch>& found);

// The value of LD_LIBRARY_PATH with which the chosen program loads the chosen libtorch; nullopt
// where it does so without. `others`: the libtorch on the present LD_LIBRARY_PATH, if any. Pure.
std::optional<std::string> library_path(const LibtorchChoice& choice, const std::string& present,
                                        bool others);

// The builds of program `name` below the prefix, the newest libtorch first.
std::vector<TorchBuild> torch_builds(const std::filesystem::path& prefix, const std::string& name);

// The libtorch of `folder`: one with lib/libtorch_cpu.so, or itself with libtorch_cpu.so. nullopt
// where there is none.
std::optional<Libtorch> libtorch_in(const std::filesystem::path& folder, const std::string& how);

// Looks for libtorch, in this order: LOCKSTEP_LIBTORCH, which alone counts where it is set;
// LD_LIBRARY_PATH; in or behind the folders of the builds; the active virtual or conda environment;
// the torch of `python3` on PATH; /opt/libtorch, /usr/local and the system's folders.
// Stops at the first one that fits a build.
// Throws: InvalidArgument where LOCKSTEP_LIBTORCH names none.
std::vector<Libtorch> find_libtorch(const std::vector<TorchBuild>& builds, const EnvLookup& env);

// The program and the environment (all of it; nullopt: this process's) with which a command starts.
struct EngineStart {
  std::filesystem::path program;
  std::optional<std::vector<std::string>> environment;
  std::optional<LibtorchChoice> choice;  // nullopt: the program of a build tree
};
// For program `name`, where `lockstep` is this command's file.
// Throws: InvalidArgument where the program is missing, or no libtorch fits: one line, what to do.
EngineStart engine_start(const std::filesystem::path& lockstep, const std::string& name,
                         const EnvLookup& env);

}  // namespace lockstep::inline v0::cli
