#include "lockstep/cli/libtorch_choice.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <tuple>

#include "lockstep/cli/child_output.h"
#include "lockstep/cli/commands.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::inline v0::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libtorch_cpu.so";
constexpr const char* kVariable = "LOCKSTEP_LIBTORCH";
constexpr double kPythonTimeout = 20;  // seconds; a cold start from a network file system is slow

bool there(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(file, ignored);
}

// 2.9 is older than 2.13.
std::tuple<int64_t, int64_t> number_of(const std::string& minor) {
  const size_t point = minor.find('.');
  if (point == std::string::npos) return {0, 0};
  return {parse_int(minor.substr(0, point)).value_or(0),
          parse_int(minor.substr(point + 1)).value_or(0)};
}

// The version that a file of libtorch states, whichever of the three it is.
std::string stated_version(const fs::path& file) {
  std::ifstream stream(file);
  std::array<std::string, 3> numbers;
  static constexpr std::array<std::string_view, 3> kNames = {"MAJOR", "MINOR", "PATCH"};
  for (std::string line; std::getline(stream, line);) {
    for (size_t i = 0; i < kNames.size(); ++i) {
      const std::string begin = "#define TORCH_VERSION_" + std::string(kNames[i]) + " ";
      if (line.starts_with(begin)) numbers[i] = line.substr(begin.size());
    }
    if (line.starts_with("__version__ = '")) return quoted_part(line);
    if (file.filename() == "build-version") return line;
  }
  return numbers[0].empty() ? "" : numbers[0] + "." + numbers[1] + "." + numbers[2];
}

std::string version_beside(const fs::path& lib) {
  const fs::path folder = lib.parent_path();
  // A wheel, libtorch's archive, a package of the system (whose lib folder may be lib/x86_64-...).
  for (const fs::path& file :
       {folder / "version.py", folder / "build-version",
        folder / "include/torch/headeronly/version.h",
        folder.parent_path() / "include/torch/headeronly/version.h",
        folder / "include/torch/csrc/api/include/torch/version.h",
        folder.parent_path() / "include/torch/csrc/api/include/torch/version.h"}) {
    if (std::string version = stated_version(file); !version.empty()) return version;
  }
  return "";
}

std::vector<fs::path> folders_of(const std::string& path) {
  std::vector<fs::path> folders;
  std::istringstream stream(path);
  for (std::string folder; std::getline(stream, folder, ':');)
    if (!folder.empty()) folders.emplace_back(folder);
  return folders;
}

// PREFIX/lib/python3.x/site-packages/torch, the newest Python first.
std::vector<fs::path> wheels_of(const fs::path& prefix) {
  std::vector<fs::path> wheels;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", ignored))
    if (entry.path().filename().string().starts_with("python3"))
      wheels.push_back(entry.path() / "site-packages" / "torch");
  std::sort(wheels.rbegin(), wheels.rend());
  return wheels;
}

// The folder of the torch that python3 would import, which is not imported for that.
fs::path torch_of_python() {
  return line_of_python("python3",
                        "import importlib.util as u; s = u.find_spec('torch'); "
                        "print(s.submodule_search_locations[0] if s else '')",
                        kPythonTimeout, PythonErrors::kShown);
}

std::vector<std::string> minors_of(const std::vector<TorchBuild>& builds) {
  std::vector<std::string> minors;
  for (const TorchBuild& build : builds) minors.insert(minors.begin(), build.minor);
  return minors;
}

std::string described(const Libtorch& libtorch) {
  return (libtorch.version.empty() ? "an unknown version" : libtorch.version) + " in " +
         libtorch.lib.string() + " (" + libtorch.found_by + ")";
}

}  // namespace

std::string minor_of(const std::string& version) {
  const size_t first = version.find('.');
  if (first == std::string::npos || first == 0) return "";
  const size_t end = std::min(version.find_first_not_of("0123456789", first + 1), version.size());
  return end == first + 1 ? "" : version.substr(0, end);
}

std::optional<LibtorchChoice> choose_libtorch(const std::vector<TorchBuild>& builds,
                                              const std::vector<Libtorch>& found) {
  for (const Libtorch& libtorch : found) {
    // One that was installed with a build, without what would say its version, is of that release.
    const std::string minor =
        libtorch.version.empty() ? libtorch.of_build : minor_of(libtorch.version);
    if (!libtorch.of_build.empty() && libtorch.of_build != minor) continue;
    const auto build = std::find_if(builds.begin(), builds.end(),
                                    [&](const TorchBuild& one) { return one.minor == minor; });
    if (build != builds.end()) return LibtorchChoice{*build, libtorch};
  }
  return std::nullopt;
}

std::string no_libtorch(const std::vector<TorchBuild>& builds, const std::vector<Libtorch>& found) {
  const std::string minors = joined(minors_of(builds), " or ");
  std::vector<std::string> others;
  for (const Libtorch& libtorch : found) others.push_back(described(libtorch));
  const bool named = found.size() == 1 && found[0].found_by == kVariable;
  std::string text = "Lockstep is installed here for libtorch " + minors;
  text += others.empty() ? ", and none was found"
          : named        ? ", and LOCKSTEP_LIBTORCH names " + others[0]
                         : ", and found only " + joined(others);
  return text + "; install one (pip install 'torch==" + builds.front().minor +
         ".*'), or set LOCKSTEP_LIBTORCH to its folder";
}

std::optional<std::string> library_path(const LibtorchChoice& choice, const std::string& present,
                                        bool others) {
  if (!choice.libtorch.of_build.empty() && !others) return std::nullopt;
  if (choice.libtorch.found_by == "LD_LIBRARY_PATH" && folders_of(present).size() == 1)
    return std::nullopt;
  return choice.libtorch.lib.string() + (present.empty() ? "" : ":" + present);
}

std::vector<TorchBuild> torch_builds(const fs::path& prefix, const std::string& name) {
  static const std::string kBegin = "torch-";
  std::vector<TorchBuild> builds;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(prefix / "libexec" / "lockstep", ignored)) {
    const std::string folder = entry.path().filename().string();
    if (folder.starts_with(kBegin) && ::access((entry.path() / name).c_str(), X_OK) == 0)
      builds.push_back({folder.substr(kBegin.size()), entry.path()});
  }
  std::sort(builds.begin(), builds.end(), [](const TorchBuild& a, const TorchBuild& b) {
    return number_of(a.minor) > number_of(b.minor);
  });
  return builds;
}

std::optional<Libtorch> libtorch_in(const fs::path& folder, const std::string& how) {
  for (const fs::path& lib : {folder / "lib", folder})
    if (there(lib / kLibrary)) return Libtorch{lib, version_beside(lib), how, ""};
  return std::nullopt;
}

std::vector<Libtorch> find_libtorch(const std::vector<TorchBuild>& builds, const EnvLookup& env) {
  std::vector<Libtorch> found;
  // Adds what is there; true where it fits, and the search is over.
  const auto add = [&](const fs::path& folder, const std::string& how,
                       const std::string& build = "") {
    if (folder.empty()) return false;
    auto libtorch = libtorch_in(folder, how);
    if (!libtorch) return false;
    libtorch->of_build = build;
    found.push_back(*libtorch);
    return choose_libtorch(builds, {*libtorch}).has_value();
  };
  if (const auto named = env(kVariable)) {
    add(*named, kVariable);
    if (found.empty())
      throw InvalidArgument(std::string(kVariable) + "=" + *named +
                            " names no libtorch (a folder with lib/libtorch_cpu.so)");
    return found;
  }
  for (const fs::path& folder : folders_of(env("LD_LIBRARY_PATH").value_or("")))
    if (there(folder / kLibrary) && add(folder, "LD_LIBRARY_PATH")) return found;
  for (const TorchBuild& build : builds)
    if (add(build.folder / "libtorch", "installed with it", build.minor)) return found;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const auto prefix = env(variable);
    if (!prefix) continue;
    for (const fs::path& wheel : wheels_of(*prefix))
      if (add(wheel, variable)) return found;
    if (add(*prefix, variable)) return found;
  }
  if (add(torch_of_python(), "python3")) return found;
  for (const char* folder : {"/opt/libtorch", "/usr/local/libtorch", "/usr/local",
                             "/usr/lib/" LOCKSTEP_MULTIARCH, "/usr/lib64", "/usr/lib"})
    if (add(folder, "the system")) return found;
  return found;
}

EngineStart engine_start(const fs::path& lockstep, const std::string& name, const EnvLookup& env) {
  EngineStart start;
  start.program = program_path(lockstep, name);
  if (::access(start.program.c_str(), X_OK) == 0) return start;
  const auto builds = torch_builds(lockstep.parent_path().parent_path(), name);
  if (builds.empty())
    throw InvalidArgument(start.program.string() + " is missing; " + how_to_build(lockstep, name));
  const auto found = find_libtorch(builds, env);
  start.choice = choose_libtorch(builds, found);
  if (!start.choice) throw InvalidArgument(no_libtorch(builds, found));
  start.program = start.choice->build.folder / name;
  const std::string present = env("LD_LIBRARY_PATH").value_or("");
  const auto folders = folders_of(present);
  const bool others = std::any_of(folders.begin(), folders.end(),
                                  [](const fs::path& folder) { return there(folder / kLibrary); });
  if (const auto path = library_path(*start.choice, present, others)) {
    start.environment = launch::current_environment();
    std::erase_if(*start.environment,
                  [](const std::string& line) { return line.starts_with("LD_LIBRARY_PATH="); });
    start.environment->push_back("LD_LIBRARY_PATH=" + *path);
  }
  return start;
}

}  // namespace lockstep::inline v0::cli
