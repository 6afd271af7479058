#include "lockstep/bench/peers.h"

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::bench {
namespace {

std::string import_obstacle(const std::string& python, const std::string& modules) {
  try {
    SubprocessOptions options;
    options.command = {python, "-c", "import " + modules};
    const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    options.stdout_fd = options.stderr_fd = null.get();
    if (Subprocess(options).wait(Deadline::seconds(120)).ok()) return "";
    return "'" + python + "' cannot import " + modules;
  } catch (const Error& error) {
    return error.what();
  }
}

std::string not_there(const std::string& what) {
  return "there is no " + what +
         "; programs of peers are not installed: name their folder with --peers, bench/peers of "
         "Lockstep's sources or libexec/lockstep/peers of a build with tests";
}

}  // namespace

std::string Peers::missing() const {
  return std::filesystem::is_directory(folder) ? "" : not_there("folder " + folder.string());
}

std::string Peers::obstacle(const std::string& name, const std::string& modules) const {
  if (std::string why = missing(); !why.empty()) return why;
  if (::access(file(name).c_str(), modules.empty() ? X_OK : R_OK) != 0)
    return not_there(file(name));
  if (modules.empty()) return "";
  const std::string why = import_obstacle(python, modules);
  return why.empty() ? "" : why + "; name a Python that can with --python";
}

}  // namespace lockstep::inline v0::bench
