#include "lockstep/cli/run/working_directory.h"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <system_error>

#include "lockstep/cli/usage.h"

namespace lockstep::inline v0::cli {
namespace {

namespace fs = std::filesystem;

// A path; or a name that is looked for elsewhere unless it has a slash; or words, the first of
// which is such a name.
enum class PathKind { kPath, kPathOrName, kWords };

struct PathVariable {
  std::string_view name;
  PathKind kind;
};
constexpr std::array kPathVariables = {
    PathVariable{"LOCKSTEP_SECRET_FILE", PathKind::kPath},
    PathVariable{"LOCKSTEP_TRACE_DIR", PathKind::kPath},
    PathVariable{"LOCKSTEP_LIBTORCH", PathKind::kPath},
    PathVariable{"LOCKSTEP_DATA", PathKind::kPath},
    PathVariable{"LOCKSTEP_MPI_LIBRARY", PathKind::kPathOrName},
    PathVariable{"LOCKSTEP_MPIRUN", PathKind::kPathOrName},
    PathVariable{"LOCKSTEP_NCCL", PathKind::kPathOrName},
    PathVariable{"PYTHON_EXEC", PathKind::kPathOrName},
    PathVariable{"LOCKSTEP_SSH", PathKind::kWords},
};

// The keys of --rdzv-conf whose values are files.
constexpr std::array<std::string_view, 8> kFilesOfConf = {
    "cacert", "ca_cert",      "cert",          "ssl_cert",
    "key",    "ssl_cert_key", "password-file", "password_file"};

std::string absolute(const std::string& path, const fs::path& here) {
  return path.empty() ? path : (here / path).lexically_normal().string();
}

std::string absolute(const std::string& value, PathKind kind, const fs::path& here) {
  if (kind == PathKind::kPath) return absolute(value, here);
  const size_t end = kind == PathKind::kWords ? value.find(' ') : std::string::npos;
  const std::string name = value.substr(0, end);
  if (name.find('/') == std::string::npos) return value;
  return absolute(name, here) + (end == std::string::npos ? "" : value.substr(end));
}

const PathVariable* path_variable(std::string_view name) {
  const auto* const found = std::find_if(kPathVariables.begin(), kPathVariables.end(),
                                         [name](const auto& one) { return one.name == name; });
  return found == kPathVariables.end() ? nullptr : found;
}

// "key=value,...".
std::string absolute_conf(const std::string& conf, const fs::path& here) {
  std::string result;
  for (size_t begin = 0; begin <= conf.size();) {
    const size_t end = std::min(conf.find(',', begin), conf.size());
    const std::string pair = conf.substr(begin, end - begin);
    const size_t equals = pair.find('=');
    const bool file = equals != std::string::npos &&
                      std::find(kFilesOfConf.begin(), kFilesOfConf.end(),
                                std::string_view(pair).substr(0, equals)) != kFilesOfConf.end();
    result += begin == 0 ? "" : ",";
    result += file ? pair.substr(0, equals + 1) + absolute(pair.substr(equals + 1), here) : pair;
    begin = end + 1;
  }
  return result;
}

}  // namespace

RunFlags with_absolute_paths(RunFlags flags, const fs::path& here) {
  for (std::string* path :
       {&flags.host_file, &flags.log_dir, &flags.output_filename, &flags.trace_dir})
    *path = absolute(*path, here);
  flags.ssh_command = absolute(flags.ssh_command, PathKind::kWords, here);
  flags.rdzv_conf = absolute_conf(flags.rdzv_conf, here);
  for (std::string& variable : flags.forward) {  // NAME or NAME=VALUE
    const size_t equals = variable.find('=');
    if (equals == std::string::npos) continue;
    if (const PathVariable* known = path_variable(std::string_view(variable).substr(0, equals)))
      variable =
          variable.substr(0, equals + 1) + absolute(variable.substr(equals + 1), known->kind, here);
  }
  return flags;
}

std::map<std::string, std::string> absolute_variables(const EnvLookup& env, const fs::path& here) {
  std::map<std::string, std::string> changed;
  for (const auto& [name, kind] : kPathVariables) {
    const std::optional<std::string> value = env(name);
    if (!value) continue;
    std::string path = absolute(*value, kind, here);
    if (path != *value) changed.emplace(name, std::move(path));
  }
  return changed;
}

RunFlags in_working_directory(RunFlags flags) {
  if (flags.working_directory.empty()) return flags;
  const fs::path here = fs::current_path();
  flags = with_absolute_paths(std::move(flags), here);
  for (const auto& [name, value] : absolute_variables(process_env(), here))
    ::setenv(name.c_str(), value.c_str(), 1);
  std::error_code error;
  fs::current_path(flags.working_directory, error);
  if (error)
    throw UsageError("--wdir=" + flags.working_directory +
                     " cannot be entered: " + error.message());
  return flags;
}

}  // namespace lockstep::inline v0::cli
