#include "lockstep/cli/engine/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <cmath>

#include "lockstep/cli/engine/compare/scaling.h"
#include "lockstep/cli/engine/train/stop.h"
#include "lockstep/cli/engine/train/summary.h"
#include "lockstep/core/errors.h"

namespace lockstep::engine::command_line_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CommandLine, BothSpellings) {
  EXPECT_THAT(
      with_dashes({"mnist", "--batch_size=a_b", "--log_every", "x_y", "-n_p", "--", "--a_b"}),
      ElementsAre("mnist", "--batch-size=a_b", "--log-every", "x_y", "-n_p", "--", "--a_b"));
  EXPECT_EQ(option_name("batch_size"), "--batch-size");
}

TEST(CommandLine, ErrorsBecomeExitCodes) {
  EXPECT_EQ(run_guarded("x", [] { return 7; }), 7);
  EXPECT_EQ(run_guarded("x", []() -> int { throw HelpShown{}; }), 0);
  EXPECT_EQ(run_guarded("x", []() -> int { throw InvalidArgument("a"); }), 2);
  EXPECT_EQ(run_guarded("x", []() -> int { throw DataError("a"); }), 2);
  EXPECT_EQ(run_guarded("x", []() -> int { throw CheckpointError("a"); }), 2);
  EXPECT_EQ(run_guarded("x", []() -> int { throw PeerLost("a", 1); }), 1);
  EXPECT_EQ(run_guarded("x", []() -> int { throw Told{.exit_code = 3}; }), 3);
  const auto failing = [](std::errc code) {
    return [code]() -> int {
      throw std::filesystem::filesystem_error("status", "/x", std::make_error_code(code));
    };
  };
  EXPECT_EQ(run_guarded("x", failing(std::errc::permission_denied)), 2);
  EXPECT_EQ(run_guarded("x", failing(std::errc::io_error)), 1);
}

TEST(TrainStop, TheResumeCommandIsOneForAShell) {
  StartedRun run{.output = "no/such/folder",
                 .arguments = {"mnist", "--data", "my digits", "--epochs=3", "--output", "it's"},
                 .command = "build/release/bin/lockstep"};
  EXPECT_EQ(resume_command(run),
            "build/release/bin/lockstep train mnist --data 'my digits' --epochs=3 --output "
            "'it'\\''s' --resume");
  EXPECT_THAT(stopped_line(run, SIGTERM),
              HasSubstr("stopped by SIGTERM before its first checkpoint; start again with: build"));
  run.arguments.push_back("--resume");
  EXPECT_THAT(resume_command(run), ::testing::EndsWith("'it'\\''s' --resume"));
  EXPECT_EQ(full_disk_text(run, SystemError("cannot write x", EIO)), "");
  EXPECT_THAT(full_disk_text(run, SystemError("cannot write x", ENOSPC)),
              HasSubstr("cannot write x; make room there, then start again with: build"));
}

TEST(Compare, SizesAndRatios) {
  EXPECT_THAT(parse_sizes("1,2,4"), ElementsAre(1, 2, 4));
  for (const char* bad : {"", "0", "1,,2", "1,x", "1.5", "-1"})
    EXPECT_THROW(parse_sizes(bad), InvalidArgument) << bad;
  const std::vector<ScalingRow> rows{{.nproc = 2, .seconds = 10},
                                     {.nproc = 4, .seconds = 6.25, .loss = 0.5, .accuracy = 0.9}};
  EXPECT_DOUBLE_EQ(speed_up(rows, 1), 1.6);
  EXPECT_DOUBLE_EQ(efficiency(rows, 1), 0.8);
  EXPECT_THAT(scaling_table(rows),
              HasSubstr("    4     6.25      1.60        80 %          0      0.5000   90.00 %"));
  EXPECT_THAT(scaling_svg(rows), HasSubstr("Speed-up"));
}

TEST(TrainSummary, SaysWhereThingsAre) {
  TrainConfig config;
  config.output = "runs/x";
  config.data = "/d";
  config.nproc = 2;
  TrainResult result;
  result.evaluation.accuracy = 0.9735;
  result.evaluation.samples = 100;
  result.question = "--file /d/t10k --index 7";
  result.state.best_score = 0.98;
  const std::string text = train_summary({.result = result,
                                          .config = config,
                                          .backend = "shm",
                                          .built_in = true,
                                          .command = "bin/lockstep"});
  EXPECT_THAT(text, HasSubstr("Trained on 2 ranks (shm, ddp)"));
  EXPECT_THAT(text, HasSubstr("Test accuracy 97.35 % on 100 samples; the best was 98.00 %"));
  EXPECT_THAT(text, HasSubstr("  best checkpoint   runs/x/checkpoints/best\n"));
  EXPECT_THAT(text,
              HasSubstr("  bin/lockstep predict --checkpoint runs/x --file /d/t10k --index 7\n"));
  result.evaluation.samples = 0;  // resumed where nothing was left
  EXPECT_THAT(train_summary({.result = result, .config = config, .backend = "shm"}),
              AllOf(Not(HasSubstr("97.35")), HasSubstr("The best test accuracy was 98.00 %")));
}

TEST(TrainSummary, OfALanguageModelSaysItsPerplexity) {
  TrainConfig config = default_config("lm");
  TrainResult result;
  result.evaluation.loss = std::log(5.0);
  result.evaluation.samples = 7000;
  result.state.best_score = -std::log(4.5);
  result.state.best_step = 30;
  EXPECT_THAT(train_summary({.result = result, .config = config, .backend = "shm"}),
              HasSubstr("Dev perplexity 5.000 on 7000 tokens; the best was 4.500 at step 30"));
}

}  // namespace lockstep::engine::command_line_test
