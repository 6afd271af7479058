#include "lockstep/cli/engine/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <cmath>
#include <sstream>
#include <tuple>

#include "lockstep/cli/engine/bench/command.h"
#include "lockstep/cli/engine/checkpoint/command.h"
#include "lockstep/cli/engine/compare/command.h"
#include "lockstep/cli/engine/compare/scaling.h"
#include "lockstep/cli/engine/diff/command.h"
#include "lockstep/cli/engine/inference/eval_command.h"
#include "lockstep/cli/engine/inference/predict_command.h"
#include "lockstep/cli/engine/train/command.h"
#include "lockstep/cli/engine/train/stop.h"
#include "lockstep/cli/engine/train/summary.h"
#include "lockstep/cli/engine/verify/command.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::engine::command_line_test {

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
  EXPECT_EQ(run_guarded("x", []() -> int { throw AlreadyReported{.exit_code = 3}; }), 3);
  const auto failing = [](std::errc code) {
    return [code]() -> int {
      throw std::filesystem::filesystem_error("status", "/x", std::make_error_code(code));
    };
  };
  EXPECT_EQ(run_guarded("x", failing(std::errc::permission_denied)), 2);
  EXPECT_EQ(run_guarded("x", failing(std::errc::io_error)), 1);
}

// Runs a command in this process and returns its output.
std::string printed_by(int (*command)(const Arguments&), const Arguments& arguments) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(command(arguments), 0);
  return ::testing::internal::GetCapturedStdout();
}

// Returns the error for arguments that it refuses.
std::string refusal_by(int (*command)(const Arguments&), const Arguments& arguments) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(command(arguments), 2);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Help, OfEveryCommandFitsATerminalAndEndsWithAnExample) {
  using Command = int (*)(const Arguments&);
  const std::vector<std::pair<Command, Arguments>> all{{train_command, {}},
                                                       {train_command, {"mnist"}},
                                                       {train_command, {"cifar"}},
                                                       {train_command, {"text"}},
                                                       {train_command, {"lm"}},
                                                       {eval_command, {}},
                                                       {predict_command, {}},
                                                       {compare_command, {}},
                                                       {compare_command, {"--scaling", "1"}},
                                                       {compare_command, {"--parallelism"}},
                                                       {compare_command, {"--programs", "x"}},
                                                       {diff_command, {}},
                                                       {checkpoint_command, {}},
                                                       {checkpoint_command, {"inspect"}},
                                                       {checkpoint_command, {"convert"}},
                                                       {checkpoint_command, {"consolidate"}},
                                                       {checkpoint_command, {"reshard"}},
                                                       {bench_command, {}},
                                                       {bench_command, {"collectives"}},
                                                       {bench_command, {"step"}},
                                                       {bench_command, {"rpc"}},
                                                       {verify_command, {}}};
  for (auto [command, arguments] : all) {
    arguments.emplace_back("--help");
    const std::string help = printed_by(command, arguments);
    const std::string which = ::testing::PrintToString(arguments);
    std::istringstream lines(help);
    std::string last;
    for (std::string line; std::getline(lines, line); last = line)
      EXPECT_LE(line.size(), cli::kHelpWidth) << which << line;
    EXPECT_TRUE(help.starts_with("Usage: lockstep ")) << which;
    EXPECT_TRUE(last.starts_with("  lockstep ")) << which << last;
    EXPECT_THAT(help, Not(HasSubstr("VALUE"))) << which;
  }
}

TEST(Help, OfTrainSaysWhatIsTakenAndWhatIsUsedInsteadOfNothing) {
  const std::string mnist = printed_by(train_command, {"mnist", "--help"});
  for (const char* group : {"\nData and model:\n", "\nTraining:\n", "\nRanks:\n", "\nOutput:\n"})
    EXPECT_THAT(mnist, HasSubstr(group));
  EXPECT_THAT(mnist, AllOf(HasSubstr("  --data PATH               (required, but with"),
                           HasSubstr("  RECIPE                    (required) what to train"),
                           HasSubstr("samples a rank and step [128 / nproc]"),
                           HasSubstr("--schedule constant|linear|cosine"), HasSubstr("--epochs N "),
                           HasSubstr("passes over the training data [10]"),
                           HasSubstr("  lockstep train mnist --data digits --nproc 2")));
  EXPECT_THAT(printed_by(train_command, {"cifar", "--help"}),
              AllOf(HasSubstr("learning rate [0.1 for ResNets, 0.02 for simple-cnn]"),
                    HasSubstr("--augment [true|false]"), HasSubstr("mirroring [true]")));
  const std::string lm = printed_by(train_command, {"lm", "--help"});
  EXPECT_THAT(lm, AllOf(HasSubstr("parts of a batch [2 a stage]"), HasSubstr("[tiny: 3e-3,")));
  for (const std::string& help : {mnist, lm}) EXPECT_THAT(help, Not(HasSubstr("lr [0]")));
}

TEST(CommandLine, WhatIsGivenAsNothingIsNotTakenForNotGiven) {
  for (const auto& [command, arguments, says] :
       std::vector<std::tuple<int (*)(const Arguments&), Arguments, const char*>>{
           {compare_command, {"--scaling", ""}, "--scaling is empty; give it a value"},
           {compare_command, {"text", "--scaling", ""}, "--scaling is empty"},
           {compare_command, {"--programs", "x", "--scaling", ""}, "--scaling is empty"},
           {compare_command, {"--programs", ""}, "--programs is empty"},
           {compare_command, {"--strategies", ""}, "--strategies is empty"},
           {compare_command, {"--threads-per-rank", "0"}, "--threads-per-rank is 0"},
           {compare_command, {"--programs", "x", "--threads-per-rank", "0"}, "is 0; give a number"},
           {compare_command, {"--parallelism", "--layers", "0"}, "--layers is 0"},
           {bench_command, {}, "what to measure is missing; give collectives, step or rpc"},
           {checkpoint_command, {}, "what to do is missing; give inspect, convert, consolidate"},
           {bench_command, {"step", "--batch", "0"}, "--batch"},
           {bench_command, {"step", "--mesh", ""}, "--mesh is empty"},
           {bench_command, {"collectives", "--json", ""}, "--json is empty"},
           {train_command, {"mnist", "--data", "digits", "--lr", "0"}, "--lr is '0'"},
           {train_command,
            {"mnist", "--data", "digits", "--batch-size", "0"},
            "--batch-size is '0'; give a number above 0, or leave it out"},
           {train_command,
            {"lm", "--data", "sentences", "--mesh", "pipe=2", "--micro-batches", "0"},
            "--micro-batches is '0'"},
           {train_command, {"mnist", "--data", "digits", "--json", ""}, "--json is empty"},
           {train_command, {"mnist", "--data", "digits", "--config", ""}, "--config is empty"},
           {eval_command, {"--checkpoint", "x", "--data", ""}, "--data is empty"},
           {predict_command, {"--checkpoint", "x", "--file", ""}, "--file is empty"},
           {diff_command, {"", "b"}, "is empty"},
           {checkpoint_command, {"inspect", "x", "--json", ""}, "--json is empty"},
           {verify_command, {"--mesh", "pipe=2", "--micro-batches", "0"}, "--micro-batches is 0"},
           {verify_command, {"--matrix", "--zero", "0"}, "are of one product: give --mesh"},
           {verify_command, {"--matrix", "--mesh", ""}, "--mesh is empty"}}) {
    EXPECT_THAT(refusal_by(command, arguments), HasSubstr(says))
        << ::testing::PrintToString(arguments);
  }
}

// Every error of a product is reported before a model is trained.
TEST(Verify, ChecksItsFlagsBeforeItTrains) {
  const auto refused = [](const Arguments& words) {
    try {
      (void)plan_verify(words);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  EXPECT_THAT(refused({"--mesh", "pipe=2", "--schedule", "zb-h2"}),
              HasSubstr("did you mean zb-h1?"));
  EXPECT_THAT(refused({"--mesh", "data=2", "--schedule", "zb-h2"}),
              HasSubstr("did you mean zb-h1?"));
  EXPECT_THAT(refused({"--mesh", "data=2", "--zero", "7"}), HasSubstr("zero is 7"));
  EXPECT_THAT(refused({"--mesh", "pipe=2", "--micro-batches", "-1"}),
              HasSubstr("-1 micro-batches"));
  EXPECT_THAT(refused({"--mesh", "tensor=3"}), HasSubstr("3"));
  EXPECT_EQ(plan_verify({"--mesh", "data=2"}).tolerance, 1e-10);
  EXPECT_EQ(plan_verify({"--mesh", "data=2", "--dtype", "float32"}).tolerance, 1e-5);
  EXPECT_EQ(plan_verify({"--mesh", "data=2", "--tolerance", "0"}).tolerance, 0);
  EXPECT_GT(plan_verify({"--matrix"}).products.size(), 10u);
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

TEST(Compare, SizesAreComparedWithTheFirst) {
  const auto row = [](int nproc, double seconds, double loss, double accuracy) {
    return bench::Row{{"nproc", nproc},
                      {"seconds", seconds},
                      {"samples_per_s", 0.0},
                      {"loss", loss},
                      {"accuracy", accuracy}};
  };
  std::vector<bench::Row> rows{row(2, 10, 0, 0), row(4, 6.25, 0.5, 0.9)};
  compare_to_first_size(rows);
  EXPECT_DOUBLE_EQ(rows[1].at("speed_up"), 1.6);
  EXPECT_DOUBLE_EQ(rows[1].at("efficiency"), 0.8);
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
  EXPECT_THAT(text, HasSubstr("  bin/lockstep compare --scaling 1,2 "));
  EXPECT_THAT(train_summary({.result = result, .config = config, .compares = false}),
              Not(HasSubstr("compare")))
      << "after scripts/quickstart";
  result.evaluation.samples = 0;  // resumed after its last step
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

}  // namespace lockstep::inline v0::engine::command_line_test
