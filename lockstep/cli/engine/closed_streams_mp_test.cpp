// Starts commands that start processes, with stdin, stdout or stderr closed, as cron, a daemon or
// `>&-` do.
#include <gtest/gtest.h>

#include <string>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::engine::closed_streams_mp_test {

// Returns the exit code, or 128 + signal.
int run_with(const std::string& closed, const Arguments& arguments) {
  SubprocessOptions options;
  const std::string program = arguments[0] == "train" ? LOCKSTEP_ENGINE : LOCKSTEP_TOOLS;
  options.command = {"/bin/sh", "-c", "exec \"$0\" \"$@\" " + closed, program};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  const ExitStatus status = Subprocess(options).wait(Deadline::seconds(300));
  return status.signal == 0 ? status.exit_code : 128 + status.signal;
}

constexpr const char* kAll = "<&- >&- 2>&-";

TEST(ClosedStreams, TrainRunsAsWithDevNull) {
  for (const std::string closed : {"<&-", "</dev/null >&-", "</dev/null 2>&-", kAll}) {
    const TestDirectory dir;
    EXPECT_EQ(run_with(closed, {"train", "mnist", "--data", "digits", "--nproc", "2", "--max-steps",
                                "2", "--output", dir / "o", "--json", dir / "result.json"}),
              0)
        << closed;
    EXPECT_NE(dir.read("result.json"), "") << closed;
  }
}

TEST(ClosedStreams, SoDoWhatStartsTrainingsAndBenchmarks) {
  const TestDirectory dir;
  EXPECT_EQ(run_with(kAll, {"compare", "--scaling", "1,2", "--data", "digits", "--max-steps", "2",
                            "--output", dir / "c", "--json", dir / "compare.json"}),
            0);
  EXPECT_NE(dir.read("compare.json"), "");
  EXPECT_EQ(run_with(kAll, {"bench", "collectives", "--nproc", "2", "--ops", "all_reduce",
                            "--backends", "shm", "--sizes", "1K", "--rounds", "1", "--block-ms",
                            "1", "--json", dir / "bench.json"}),
            0);
  EXPECT_NE(dir.read("bench.json"), "");
}

}  // namespace lockstep::inline v0::engine::closed_streams_mp_test
