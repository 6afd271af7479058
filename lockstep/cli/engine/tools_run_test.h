// Runs `lockstep compare`, `bench` or `verify` as a user does.
#pragma once

#include <fcntl.h>

#include <string>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::engine {

struct ToolsEnd {
  ExitStatus status;
  std::string out, err;
};

// Runs the words, such as "compare", "mnist"; the output streams are kept in `dir`.
inline ToolsEnd run_tools(const TestDirectory& dir, const Arguments& words,
                          const char* program = LOCKSTEP_TOOLS) {
  const UniqueFd out(::creat((dir / "stdout").c_str(), 0600));
  const UniqueFd err(::creat((dir / "stderr").c_str(), 0600));
  SubprocessOptions options;
  options.command = {"lockstep"};
  options.command.insert(options.command.end(), words.begin(), words.end());
  options.program = program;
  options.stdout_fd = out.get();
  options.stderr_fd = err.get();
  const ExitStatus status = Subprocess(options).wait(Deadline::seconds(400));
  return {status, dir.read("stdout"), dir.read("stderr")};
}

}  // namespace lockstep::inline v0::engine
