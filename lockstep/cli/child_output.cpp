#include "lockstep/cli/child_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::cli {

std::string read_all(int fd, Deadline deadline) {
  std::string text;
  for (std::array<char, 4096> buffer;;) {
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready_fds = ::poll(&ready, 1, deadline.poll_ms());
    if (ready_fds == 0) throw Timeout("a command does not answer");
    if (ready_fds < 0 && errno == EINTR) continue;
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(n));
  }
}

std::string line_of_python(const std::filesystem::path& python, const std::string& program,
                           double seconds, PythonErrors errors) {
  // python -c would take files of the current folder for modules.
  SubprocessOptions options;
  options.command = {python.string(), "-c",
                     "import sys; sys.path[:] = [p for p in sys.path if p]; " + program};
  Pipe out = make_pipe();
  const UniqueFd nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  options.stdout_fd = out.write.get();
  if (errors == PythonErrors::kHidden) options.stderr_fd = nothing.get();
  try {
    Subprocess process(options);
    out.write.reset();
    const Deadline deadline = Deadline::seconds(seconds);
    const std::string text = read_all(out.read.get(), deadline);
    if (!process.wait(deadline).ok()) return "";
    return text.substr(0, text.find('\n'));
  } catch (const Error&) {
    return "";  // it cannot be started, or does not end
  }
}

}  // namespace lockstep::inline v0::cli
