#include "lockstep/bench/peers.h"

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::bench {
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

}  // namespace

std::string Peers::obstacle(const std::string& name, const std::string& modules) const {
  const bool executed = modules.empty();
  if (::access(file(name).c_str(), executed ? X_OK : R_OK) != 0) {
    return "there is no " + file(name) +
           (executed
                ? "; a build with tests makes it in libexec/lockstep/peers, where it finds what "
                  "it needs"
                : "; it is not installed, and stands in bench/peers of Lockstep's sources") +
           ": name its folder with --peers";
  }
  if (executed) return "";
  const std::string why = import_obstacle(python, modules);
  return why.empty() ? "" : why + "; name a Python that can with --python";
}

}  // namespace lockstep::bench
