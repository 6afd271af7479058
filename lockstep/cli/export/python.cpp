#include "lockstep/cli/export/python.h"

#include <unistd.h>

#include <algorithm>

#include "lockstep/cli/child_output.h"
#include "lockstep/cli/libtorch_choice.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::cli {
namespace fs = std::filesystem;

fs::path python_of_wheel(const fs::path& torch) {
  const fs::path packages = torch.parent_path(), library = packages.parent_path();
  const std::string folder = packages.filename().string();
  if (torch.filename() != "torch" || (folder != "site-packages" && folder != "dist-packages") ||
      !library.filename().string().starts_with("python3"))
    return {};
  return library.parent_path().parent_path() / "bin" / "python3";
}

std::optional<FoundPython> choose_python(const std::vector<FoundPython>& found,
                                         const std::vector<std::string>& minors) {
  for (const FoundPython& python : found) {
    const std::string minor = minor_of(python.torch);
    if (std::find(minors.begin(), minors.end(), minor) != minors.end()) return python;
  }
  return std::nullopt;
}

std::string no_python(const std::vector<FoundPython>& found, const std::vector<std::string>& minors,
                      bool named) {
  std::vector<std::string> looked;
  for (const FoundPython& python : found)
    looked.push_back(python.program.string() + " has " +
                     (python.torch.empty() ? "no torch" : "torch " + python.torch));
  const std::string wanted = joined(minors, " or ");
  return "Lockstep is built for torch " + wanted + ", and " +
         (looked.empty() ? "no Python was found" : joined(looked)) + "; " +
         (named ? "give another --python, or install it there"
                : "give --python PATH, or make one") +
         ": " + (named ? "" : "python3 -m venv ENV, ") +
         (named ? found.front().program.string() : "ENV/bin/python") +
         " -m pip install 'torch==" + minors.front() + ".*'";
}

std::vector<fs::path> python_places(const fs::path& lockstep, const std::optional<BuiltWith>& built,
                                    const EnvLookup& env) {
  std::vector<fs::path> places;
  const auto add = [&places](const fs::path& python) {
    if (python.empty() || ::access(python.c_str(), X_OK) != 0) return;
    if (std::find(places.begin(), places.end(), python) == places.end()) places.push_back(python);
  };
  const auto add_wheel = [&add](const fs::path& torch) {
    std::error_code error;
    const fs::path real = fs::canonical(torch, error);
    if (!error) add(python_of_wheel(real));
  };
  const fs::path prefix = lockstep.parent_path().parent_path();
  if (const auto named = env("LOCKSTEP_LIBTORCH")) add_wheel(*named);
  if (built) add_wheel(built->torch);
  for (const TorchBuild& build : torch_builds(prefix, "lockstep-engine"))
    add_wheel(build.folder / "libtorch");
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const auto active = env(variable)) add(fs::path(*active) / "bin" / "python3");
  if (built) add(prefix.parent_path().parent_path() / ".venv" / "bin" / "python3");
  try {
    add(find_program("python3"));
  } catch (const LaunchError&) {
    // PATH has none.
  }
  return places;
}

std::string torch_version_of(const fs::path& python) {
  constexpr double kTimeout = 60;  // seconds; of a file system that sleeps
  return line_of_python(python, "import importlib.metadata as m; print(m.version('torch'))",
                        kTimeout, PythonErrors::kHidden);
}

}  // namespace lockstep::inline v0::cli
