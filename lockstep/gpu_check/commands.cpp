#include "lockstep/gpu_check/commands.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cmath>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::gpu_check {

namespace {

std::string read_whole(int fd) {
  std::string text;
  std::array<char, 65536> buffer{};
  off_t at = 0;
  for (ssize_t n = 0; (n = ::pread(fd, buffer.data(), buffer.size(), at)) > 0; at += n)
    text.append(buffer.data(), static_cast<size_t>(n));
  return text;
}

}  // namespace

CommandOutput run_command(const std::vector<std::string>& command, double seconds) {
  const UniqueFd output(::memfd_create("lockstep-gpu-check", MFD_CLOEXEC));
  if (!output) throw system_error("memfd_create", errno);
  std::string wrong;
  try {
    SubprocessOptions options;
    options.command = command;
    options.stdout_fd = options.stderr_fd = output.get();
    Subprocess process(options);
    try {
      const ExitStatus status = process.wait(Deadline::seconds(seconds));
      if (status.signal != 0)
        wrong = "ended by signal " + std::to_string(status.signal);
      else if (status.exit_code != 0)
        wrong = "ended with " + std::to_string(status.exit_code);
    } catch (const Timeout&) {
      wrong = "was not over after " + std::to_string(std::lround(seconds)) + " s and was ended";
      process.signal_group(SIGKILL);
    }
  } catch (const Error& error) {
    wrong = error.what();
  }
  return {.text = read_whole(output.get()), .wrong = wrong};
}

}  // namespace lockstep::inline v0::gpu_check
