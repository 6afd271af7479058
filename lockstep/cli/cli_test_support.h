// The common part of the command's tests: starting it, and finding a Python with torch.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/launch_test_support.h"

namespace lockstep::inline v0::cli {
namespace cli_test_support {

using launch::launch_test_support::alive;
using launch::launch_test_support::dies_soon;
using launch::launch_test_support::Ended;
using launch::launch_test_support::lines_of;
using launch::launch_test_support::pids_in;
using launch::launch_test_support::Running;
using launch::launch_test_support::Started;
using Words = std::vector<std::string>;

inline std::string lockstep_program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lockstep")
      .string();
}

inline Ended run(const Words& words) {
  Running running(words);
  Ended ended;
  ended.code = running.finish();
  ended.out = running.out;
  ended.err = running.err;
  return ended;
}

inline Ended lockstep(Words words) {
  words.insert(words.begin(), lockstep_program());
  return run(words);
}

// A Python that has torch: LOCKSTEP_TEST_PYTHON, .venv of `source_dir`, or python3; "" if none has.
inline std::string torch_python(const std::string& source_dir) {
  static const std::string kFound = [&] {
    for (const std::string& candidate :
         {process_env()("LOCKSTEP_TEST_PYTHON").value_or(""), source_dir + "/.venv/bin/python3",
          std::string("python3")}) {
      try {
        if (!candidate.empty() &&
            run({candidate, "-c",
                 "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"})
                    .code == 0) {
          return find_program(candidate);
        }
      } catch (const LaunchError&) {
        // It does not exist; the next one is tried.
      }
    }
    return std::string();
  }();
  return kFound;
}

}  // namespace cli_test_support
}  // namespace lockstep::inline v0::cli
