#include "lockstep/cli/engine/train/arguments.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/text.h"
#include "lockstep/data/digits.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/report/metrics_endpoint.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::inline v0::engine::train_arguments_test {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

TrainPlan plan(const Arguments& arguments, std::optional<int> ranks = {}) {
  return make_train_plan(parse_train_arguments(arguments), ranks);
}

TEST(TrainArguments, OptionsWinOverTheFileTheFileOverDefaults) {
  const TestDirectory dir;
  dir.write("c.json", R"({"epochs": 5, "lr": 0.5, "data": "d"})");
  const TrainPlan made = plan(
      {"mnist", "--config", dir / "c.json", "--epochs=3", "--batch_size", "7", "--dropout", "0"});
  EXPECT_EQ(made.config.epochs, 3);
  EXPECT_EQ(made.config.lr, 0.5);
  EXPECT_EQ(made.config.batch_size, 7);
  EXPECT_EQ(made.config.dropout1, 0);
  EXPECT_EQ(made.config.dropout2, 0);
  EXPECT_EQ(made.config.data, (std::filesystem::current_path() / "d").string());
  EXPECT_FALSE(made.built_in);
}

TEST(TrainArguments, TheLastOfAnOptionCounts) {
  EXPECT_EQ(plan({"mnist", "--data", "d", "--nproc", "2", "--nproc", "4"}).config.batch_size, 32);
}

TEST(TrainArguments, DigitsLieUnderTheOutput) {
  const TrainPlan made = plan({"mnist", "--data", "digits", "--output", "/o"});
  EXPECT_TRUE(made.built_in);
  EXPECT_EQ(made.config.data, "/o/data");
}

TEST(TrainArguments, EachRecipeHasItsDefaults) {
  const TrainConfig made = plan({"cifar", "--data", "shapes", "--output", "/o"}).config;
  EXPECT_EQ(made.data, "/o/data");
  EXPECT_EQ(made.model, "resnet18");
  EXPECT_EQ(made.lr, 0.1);
  EXPECT_EQ(made.schedule, "cosine");
  EXPECT_TRUE(made.augment);
  EXPECT_FALSE(plan({"cifar", "--data", "d", "--augment=false"}).config.augment);
  EXPECT_TRUE(plan({"cifar", "--data", "d", "--augment", "--epochs", "2"}).config.augment);
  EXPECT_EQ(plan({"cifar", "--data", "d", "--model", "simple-cnn"}).config.lr, 0.02);
  EXPECT_EQ(plan({"mnist", "--data", "d"}).config.schedule, "constant");
}

TEST(TrainArguments, MistakesAreOneLine) {
  const auto from = [](Arguments arguments) { return error_of([&] { plan(arguments); }); };
  EXPECT_THAT(from({}), HasSubstr("see lockstep train --help"));
  EXPECT_THAT(
      from({"cifer"}),
      HasSubstr("no recipe 'cifer' (did you mean cifar?); choose mnist, cifar, text or lm"));
  EXPECT_THAT(from({"--output", "cifar", "mnist"}), HasSubstr("give the recipe first"));
  EXPECT_THAT(from({"mnist", "--augment"}), HasSubstr("--augment"));
  EXPECT_THAT(from({"mnist", "--data", "d", "--record", "x", "--json", "x"}),
              HasSubstr("--record and --json are both x"));
  EXPECT_THAT(from({"lm", "--data", "d", "--padding", "packed"}), HasSubstr("--padding"));
  EXPECT_THAT(from({"lm", "--data", "d", "--context", "1"}), HasSubstr("--context is 1"));
  EXPECT_THAT(from({"cifar", "--data", "d", "--mean", "0"}), HasSubstr("--mean"));
  EXPECT_THAT(from({"cifar", "--data", "d", "--augment=maybe"}), HasSubstr("true or false"));
  EXPECT_THAT(from({"cifar", "--data", "d", "--model", "vgg"}),
              HasSubstr("resnet18, resnet50 or simple-cnn"));
  EXPECT_THAT(from({"cifar"}), HasSubstr("give a directory with CIFAR-10's .bin files, or"));
  EXPECT_THAT(from({"mnist"}), HasSubstr("--data is missing"));
  EXPECT_THAT(from({"mnist", "--data", "d", "--epochs", "x"}), HasSubstr("--epochs is 'x'"));
  EXPECT_THAT(from({"mnist", "--data", "d", "--epohcs", "1"}), HasSubstr("--epohcs"));
  EXPECT_THAT(from({"mnist", "--data", "d", "--nproc", "0"}), HasSubstr("--nproc is 0"));
  EXPECT_THAT(
      from({"mnist", "--data", "d", "--strategy", "x"}),
      HasSubstr(
          "choose ddp, average, ring, naive-ring, horovod, zero1, zero2, zero3, fsdp, diloco or logical8"));
  EXPECT_THAT(from({"lm", "--data", "d", "--mesh", "pipes=2"}), HasSubstr("and tensor"));
  EXPECT_THAT(from({"mnist", "--config", "/none.json"}), HasSubstr("cannot read /none.json"));
}

// Every check names the option as it was written, or the key where a file gave it.
TEST(TrainArguments, ARefusalNamesTheOption) {
  const std::vector<std::pair<Arguments, std::string>> wrong{
      {{"--log-every", "0"}, "--log-every is 0; give 1 or more"},
      {{"--batch-size", "x"}, "--batch-size is 'x'; give a whole number"},
      {{"--batch-size", "0"}, "--batch-size is '0'; give a number above 0, or leave it out"},
      {{"--dropout", "1.5"}, "--dropout is 1.5; give 0 or more, and less than 1"},
      {{"--dropout", "0.5", "--dropout2", "7"},
       "--dropout2 is 7.0; give 0 or more, and less than 1"},
      {{"--strategy", "dpp"}, "--strategy 'dpp' is unknown"}};
  for (const auto& [words, line] : wrong) {
    Arguments all{"mnist", "--data", "d"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_TRUE(error_of([&] { plan(all); }).starts_with(line)) << error_of([&] { plan(all); });
  }
  EXPECT_EQ(
      error_of([] { plan({"lm", "--data", "d", "--micro-batches", "4"}); }),
      "--micro-batches is 4; give it with pipe or tensor in the mesh, such as pipe=2,tensor=2");
  const TestDirectory dir;
  dir.write("c.json", R"({"log_every": 0})");
  EXPECT_EQ(error_of([&] { plan({"mnist", "--data", "d", "--config", dir / "c.json"}); }),
            "log_every is 0; give 1 or more");
}

// Before a rank starts: whichever of the two was asked for by an option is named by it.
TEST(TrainArguments, WhatANewRankCouldNotContinueIsRefused) {
  const auto refused = [](Arguments words) {
    words.insert(words.begin(), {"mnist", "--data", "d"});
    return error_of([&] {
      const TrainArguments parsed = parse_train_arguments(words);
      check_replacement(make_train_plan(parsed, std::nullopt), parsed);
    });
  };
  EXPECT_EQ(refused({"--ema", "0.9"}),
            "--ema is 0.9, and --on-failure replace puts a new rank in a dead one's place, which "
            "would have no average; leave out one of them");
  EXPECT_THAT(refused({"--strategy", "diloco"}),
              AllOf(StartsWith("--strategy is diloco, and --on-failure replace"),
                    EndsWith("take --on-failure restart, or another strategy")));
  EXPECT_EQ(refused({"--strategy", "zero2"}), "no error");
  const TestDirectory dir;
  dir.write("c.json", R"({"ema": 0.5})");
  EXPECT_THAT(refused({"--config", dir / "c.json"}), StartsWith("ema is 0.5, and --on-failure"));
}

TEST(TrainArguments, WhatFewerRanksCouldNotContinueIsRefused) {
  const auto refused = [](Arguments words) {
    words.insert(words.begin(), {"--data", "d", "--on-failure", "shrink"});
    if (words.back() != "lm") words.insert(words.begin(), "mnist");
    return error_of([&] {
      const TrainArguments parsed = parse_train_arguments(words);
      check_shrinking(make_train_plan(parsed, std::nullopt), parsed);
    });
  };
  for (const char* strategy : {"ddp", "ring", "horovod", "logical8"})
    EXPECT_EQ(refused({"--strategy", strategy}), "no error") << strategy;
  EXPECT_EQ(refused({"--strategy", "zero3", "--nproc", "2"}),
            "--strategy is zero3, and with --on-failure shrink the others go on without a dead "
            "rank, whose part of the parameters or of the optimizer's state they do not have; take "
            "--on-failure replace or restart, or strategy ddp");
  EXPECT_THAT(refused({"--strategy", "diloco"}), StartsWith("--strategy is diloco, and with"));
  EXPECT_THAT(refused({"--nproc", "2", "--mesh", "tensor=2", "lm"}),
              StartsWith("--mesh is tensor=2, and with"));
  EXPECT_THAT(refused({"--ema", "0.9"}), StartsWith("--ema is 0.9, and with"));
  EXPECT_THAT(refused({"--record", "r.json"}), StartsWith("--record keeps every step of all"));
  EXPECT_THAT(refused({"--max-restarts", "2"}),
              StartsWith("--on-failure=shrink contradicts --max-restarts=2"));
}

TEST(TrainArguments, OuterStepsGoWithTheirStrategy) {
  const TestDirectory dir;
  TrainConfig config = default_config("mnist");
  config.data = "/d";
  config.nproc = 2;
  config.batch_size = 64;
  config.strategy = "diloco";
  config.diloco_steps = 20;
  Checkpoint checkpoint;
  checkpoint.config_json = to_json(config);
  checkpoint.trainer_json = "{}";
  write_checkpoint(RunFolder{dir.path()}.last(), checkpoint);
  const auto resumed = [&](Arguments more) {
    more.insert(more.begin(), {"mnist", "--output", dir.path(), "--resume"});
    return plan(more).config;
  };
  EXPECT_EQ(resumed({}).diloco_steps, 20);
  EXPECT_EQ(resumed({"--strategy", "ddp"}).diloco_steps, TrainConfig().diloco_steps);
  EXPECT_EQ(error_of([&] { resumed({"--strategy", "ddp", "--diloco-steps", "7"}); }),
            "--diloco-steps is 7; give it with strategy diloco");
  EXPECT_THAT(error_of([&] { resumed({"--diloco-steps", "7"}); }),
              HasSubstr("cannot resume: diloco_steps was 20 and is now 7"));
}

TEST(TrainArguments, ALaunchersRanksCount) {
  EXPECT_EQ(plan({"mnist", "--data", "d"}, 4).config.nproc, 4);
  EXPECT_EQ(plan({"mnist", "--data", "d", "--nproc", "4"}, 4).config.nproc, 4);
  EXPECT_THAT(error_of([] { plan({"mnist", "--data", "d", "--nproc", "2"}, 4); }),
              HasSubstr("a launcher has started 4"));
}

TEST(TrainArguments, ResumeTakesTheRecordedSettings) {
  const TestDirectory dir;
  const Arguments resume{"mnist", "--output", dir.path(), "--resume"};
  EXPECT_THAT(error_of([&] { plan(resume); }), HasSubstr("has no checkpoints/last to resume"));
  Checkpoint checkpoint;
  TrainConfig config;
  config.data = "/d";
  config.output = "/elsewhere";
  config.nproc = 2;
  config.batch_size = 64;
  config.lr = 0.25;
  config.trace_steps = "3:4";
  config.nvtx = true;  // of a libtorch with CUDA
  checkpoint.config_json = to_json(config);
  checkpoint.trainer_json = "{}";
  write_checkpoint(RunFolder{dir.path()}.last(), checkpoint);
  EXPECT_EQ(plan(resume).config.lr, 0.25);
  EXPECT_EQ(plan(resume).config.nproc, 2);
  EXPECT_EQ(plan(resume).config.output, dir.path());
  EXPECT_EQ(plan(resume).config.trace_steps, "") << "what looked at that run is not recorded";
  EXPECT_FALSE(plan(resume).config.nvtx);
  Arguments more = resume;
  more.insert(more.end(), {"--epochs", "20"});
  EXPECT_EQ(plan(more).config.epochs, 20);
  EXPECT_THAT(error_of([&] { plan({"cifar", "--output", dir.path(), "--resume"}); }),
              HasSubstr("holds a run of the recipe mnist, not cifar"));
  // Another number of ranks has the same samples in a step.
  Arguments ranks = resume;
  ranks.insert(ranks.end(), {"--nproc", "4", "--strategy", "zero3"});
  EXPECT_EQ(plan(ranks).config.batch_size, 32);
  EXPECT_EQ(plan(ranks).config.strategy, "zero3");
  ranks.insert(ranks.end(), {"--batch-size", "64"});
  EXPECT_THAT(error_of([&] { plan(ranks); }), HasSubstr("cannot resume: nproc was 2 and is now 4"));
  // This holds also where ranks cannot share them equally.
  const TrainConfig three =
      plan({"mnist", "--output", dir.path(), "--resume", "--nproc", "3"}).config;
  EXPECT_EQ(three.step_samples, 128);
  EXPECT_EQ(three.batch_size, 43);
  const auto asked = [&](Arguments words) {
    words.insert(words.begin(), {"mnist", "--data", "d", "--nproc", "3"});
    return plan(words).config;
  };
  EXPECT_EQ(asked({"--step-samples", "100"}).batch_size, 34);
  EXPECT_THAT(error_of([&] { asked({"--step-samples", "100", "--batch-size", "9"}); }),
              HasSubstr("--batch-size is a rank's and --step-samples all ranks' together"));
  // A launcher that starts the ranks again on fewer or more hosts repeats the line of the first
  // start, on 2 ranks.
  const auto started_again = [&](std::optional<int> on, const std::string& batch_size = "64") {
    TrainArguments arguments = parse_train_arguments(
        {"mnist", "--output", dir.path(), "--nproc", "2", "--batch-size", batch_size});
    arguments.resume = arguments.goes_on = true;
    return make_train_plan(arguments, on).config;
  };
  EXPECT_EQ(started_again(1).batch_size, 128);
  EXPECT_EQ(started_again(4).batch_size, 32);
  EXPECT_EQ(started_again(2).batch_size, 64);
  EXPECT_EQ(started_again(2, "16").batch_size, 64) << "of a line for 8 ranks, continued on 2";
  EXPECT_EQ(started_again(3).step_samples, 128);
  // It continues from there: the values of 3 ranks are recorded.
  config.nproc = 3;
  config.batch_size = 43;
  config.step_samples = 128;
  checkpoint.config_json = to_json(config);
  write_checkpoint(RunFolder{dir.path()}.last(), checkpoint);
  EXPECT_EQ(started_again(3).step_samples, 128);
  EXPECT_EQ(started_again(5).step_samples, 128);
  EXPECT_EQ(started_again(2).step_samples, 0);
  EXPECT_EQ(started_again(2).batch_size, 64);
  EXPECT_EQ(plan(resume).config.step_samples, 128);
  // Logical ranks have equal batches.
  config.nproc = 2;
  config.batch_size = 50;
  config.step_samples = 0;
  checkpoint.config_json = to_json(config);
  write_checkpoint(RunFolder{dir.path()}.last(), checkpoint);
  Arguments logical = resume;
  logical.insert(logical.end(), {"--strategy", "logical8"});
  EXPECT_THAT(error_of([&] { plan(logical); }),
              AllOf(HasSubstr("a step has 100 samples, which the 8 logical ranks of strategy "
                              "logical8 cannot share equally"),
                    Not(HasSubstr("nproc"))));
  more.insert(more.end(), {"--lr", "0.5"});
  EXPECT_THAT(error_of([&] { plan(more); }),
              HasSubstr("cannot resume: lr was 0.25 and is now 0.5"));
}

// A run that began with `config` and has reached `state`.
void write_run(const TestDirectory& dir, const TrainConfig& config, const TrainerState& state) {
  Checkpoint checkpoint;
  if (recipe_of(config.recipe).kind == RecipeKind::kImages)
    checkpoint.config_json = to_json(config);
  else
    checkpoint.files["train.json"] = to_json(config);
  checkpoint.trainer_json = to_json(state);
  write_checkpoint(RunFolder{dir.path()}.last(), checkpoint);
}

TEST(TrainArguments, ARunThatIsFinishedSaysSoAndWhatToDo) {
  const TestDirectory dir;
  TrainConfig config = default_config("mnist");
  config.data = "/d";
  config.epochs = 2;
  config.batch_size = 64;
  write_run(dir, config, {.epoch = 2, .step = 188});
  const auto said = [&](Arguments more) {
    Arguments arguments{config.recipe, "--output", dir.path(), "--resume"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return finished_text(plan(arguments));
  };
  EXPECT_THAT(said({}),
              AllOf(HasSubstr("is finished: 188 steps, 2 epochs"), HasSubstr("a greater --epochs"),
                    HasSubstr("To evaluate it: " + shell_word(lockstep_command()) +
                              " eval --checkpoint ")));
  EXPECT_EQ(said({"--epochs", "3"}), "");
  EXPECT_THAT(said({"--epochs", "3", "--max-steps", "188"}), HasSubstr("a greater --max-steps"));
  EXPECT_EQ(said({"--epochs", "3", "--max-steps", "189"}), "");
  EXPECT_EQ(finished_text(plan({"mnist", "--data", "/d"})), "");
  config = default_config("cifar");
  config.data = "/d";
  config.batch_size = 64;
  config.lr = 0.1;
  write_run(dir, config, {.epoch = 30, .step = 900});
  EXPECT_THAT(said({}),
              AllOf(HasSubstr("learning rate has come to its end"), HasSubstr("--init-from ")));
}

TEST(TrainArguments, OtherDataAreNotResumedAndNoProcessStarts) {
  const TestDirectory dir;
  TrainConfig config = default_config("mnist");
  config.data = "digits";
  config.nproc = 2;
  config.batch_size = 64;
  const auto refusal = [&](int64_t steps) {
    write_run(dir, config, {.step = 3, .steps_per_epoch = steps});
    return error_of([&] {
      const TrainArguments parsed =
          parse_train_arguments({"mnist", "--output", dir.path(), "--data", "digits", "--resume"});
      const OutputFolder output = check_train_input(make_train_plan(parsed, std::nullopt), parsed);
    });
  };
  const std::string other = refusal(7);
  EXPECT_THAT(other, AllOf(HasSubstr("cannot resume: an epoch of"), HasSubstr("has 7 steps")));
  const size_t has = other.rfind(" has ") + 5;
  EXPECT_EQ(refusal(std::stoll(other.substr(has))), "no error") << other;
}

// The data are unchanged; logical ranks leave out the samples that fill no whole step.
TEST(TrainArguments, AnotherStrategysStepsAreNotBlamedOnTheData) {
  const TestDirectory dir;
  data::generate_digits(dir / "data", {.train = 130, .test = 10});
  TrainConfig config = default_config("mnist");
  config.data = dir / "data";
  config.nproc = 2;
  config.batch_size = 64;
  write_run(dir, config, {.step = 1, .steps_per_epoch = 2});
  const auto refusal = [&](const Arguments& more) {
    Arguments arguments{"mnist", "--output", dir.path(), "--resume"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return error_of([&] {
      const TrainArguments parsed = parse_train_arguments(arguments);
      const OutputFolder output = check_train_input(make_train_plan(parsed, std::nullopt), parsed);
    });
  };
  EXPECT_EQ(refusal({}), "no error");
  EXPECT_THAT(refusal({"--strategy", "logical8"}),
              AllOf(HasSubstr("has 2 steps under strategy ddp, and 1 under logical8"),
                    HasSubstr("resume with --strategy ddp"), Not(HasSubstr("begun with"))));
}

TEST(TrainArguments, AModelMayBeTheFolderOfARun) {
  const TestDirectory dir;
  Checkpoint checkpoint;
  checkpoint.config_json = R"({"model_type": "bert"})";
  write_checkpoint(dir / "run/checkpoints/best", checkpoint);
  const auto model = [&](const std::string& given) {
    return plan({"text", "--data", "d", "--model", given}).config.model;
  };
  const std::string best = dir / "run/checkpoints/best";
  EXPECT_EQ(model(dir / "run"), best);
  EXPECT_EQ(model(best), best);
  EXPECT_EQ(model("mini"), "mini");
}

TEST(TrainArguments, AMeshThatWasRecordedIsNamedWhereItDoesNotFit) {
  const TestDirectory dir;
  TrainConfig config = default_config("lm");
  config.data = "/d";
  config.mesh = "tensor=2";
  config.nproc = 2;
  config.lr = 0.1;
  write_run(dir, config, {.step = 3});
  const Arguments resume{"lm", "--output", dir.path(), "--resume", "--nproc", "3"};
  EXPECT_THAT(error_of([&] { plan(resume); }),
              AllOf(HasSubstr("there are 3 ranks"), HasSubstr("begun with --mesh tensor=2")));
}

TEST(TrainArguments, InputIsCheckedBeforeAnythingStarts) {
  const TestDirectory dir;
  const auto check = [&](const Arguments& more) {
    Arguments arguments{"mnist", "--output", dir / "out"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return error_of([&] {
      const TrainArguments parsed = parse_train_arguments(arguments);
      const OutputFolder output = check_train_input(make_train_plan(parsed, std::nullopt), parsed);
    });
  };
  EXPECT_THAT(check({"--data", dir / "none"}), HasSubstr("none"));
  EXPECT_THAT(check({"--data", dir / "none", "--json", "/nowhere/x.json"}),
              HasSubstr("/nowhere/x.json"));
  dir.write("file", "");
  EXPECT_THAT(check({"--data", dir / "none", "--output", dir / "file"}),
              HasSubstr("give a directory that can be written"));
  EXPECT_EQ(check({"--data", "digits"}), "no error");
  EXPECT_THAT(check({"--data", "digits", "--init-from", dir / "file"}), HasSubstr("too short"));
  {
    const MetricsEndpoint taken(0, [] { return std::string(); });
    const std::string port = std::to_string(taken.port());
    EXPECT_THAT(
        check({"--data", "digits", "--metrics-port", port}),
        AllOf(StartsWith("--metrics-port is " + port + ": port " + port + " of 127.0.0.1 is taken"),
              EndsWith("; give another")));
  }
  EXPECT_EQ(check({"--data", "digits", "--metrics-port", "65534", "--nproc", "3"}),
            "--metrics-port is 65534; give 1 to 65533");
  EXPECT_EQ(check({"--data", "digits", "--metrics-port", "-1"}),
            "--metrics-port is -1; give 0 to 65535");
  EXPECT_EQ(check({"--data", "digits", "--nproc", "100000"}),
            "--nproc is 100000; give at most 1024, the ranks of one host");
  write_safetensors(dir / "other", {{"fc.weight", at::ones({2, 2})}});
  EXPECT_THAT(
      check({"--data", "digits", "--init-from", dir / "other", "--output", dir / "fresh"}),
      AllOf(HasSubstr("--init-from: "), HasSubstr("other: does not fit the model: missing: conv1"),
            HasSubstr("unexpected: fc.weight")));
  EXPECT_FALSE(std::filesystem::exists(dir / "fresh")) << "nothing is made for nothing";
  dir.write("out/data/t10k-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\x05"
                                                           "ab",
                                                           10));
  EXPECT_THAT(check({"--data", dir / "out/data"}),
              AllOf(HasSubstr("t10k-labels-idx1-ubyte"), HasSubstr("truncated")));
}

}  // namespace lockstep::inline v0::engine::train_arguments_test
