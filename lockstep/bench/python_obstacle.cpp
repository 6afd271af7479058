#include "lockstep/bench/python_obstacle.h"

#include <fcntl.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::bench {

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

}  // namespace lockstep::bench
