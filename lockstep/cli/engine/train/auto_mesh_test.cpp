// --mesh auto: what is searched, and the settings that come of it.
#include "lockstep/cli/engine/train/auto_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::engine {
namespace auto_mesh_test {

using testing::HasSubstr;
using testing::StartsWith;

EnvLookup env(std::map<std::string, std::string, std::less<>> values = {}) {
  return [values](std::string_view name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

TrainConfig language(int64_t nproc) {
  TrainConfig config = default_config("lm");
  config.data = "sentences";
  config.nproc = nproc;
  config.mesh = kAutoMesh;
  return config;
}

// Whatever is chosen is a configuration that a run takes, with the samples that a step had.
TEST(AutoMesh, WhatIsChosenCanBeTrained) {
  for (const int64_t nproc : {1, 2, 3, 4, 6, 8}) {
    for (const char* model : {"tiny", "mini", "small"}) {
      TrainConfig config = language(nproc);
      config.model = model;
      const std::string line = choose_mesh(std::nullopt, env(), &config);
      EXPECT_THAT(line, StartsWith("mesh auto: " + config.mesh + ", "));
      const TrainConfig ready = resolved(config);
      EXPECT_EQ(ready.nproc, nproc) << config.mesh;
      EXPECT_EQ(samples_of_step(ready), 12 * nproc) << config.mesh;
    }
  }
}

// A machine whose ranks have too little memory for a whole copy divides the model or its state.
TEST(AutoMesh, AMachinesFileDecides) {
  const TestDirectory folder;
  plan::Calibration machine = this_machine(4, env());
  const double parameters = static_cast<double>(plan::parameter_count(shape_of("small")));
  machine.machine.memory = 12 * parameters;  // less than 16 bytes a parameter
  machine.stack = plan::Stack{.name = "here", .overlap = 0};
  const std::string file = folder.write("machine.json", plan::to_json(machine));
  TrainConfig config = language(4);
  config.model = "small";
  config.context = 16;
  config.batch_size = 1;
  choose_mesh(std::nullopt, env({{"LOCKSTEP_MACHINE", file}}), &config);
  EXPECT_TRUE(divides_model(config) || config.strategy != "ddp") << config.mesh;
  (void)resolved(config);
  machine.machine.memory = parameters / 100;
  folder.write("machine.json", plan::to_json(machine));
  config = language(4);
  config.model = "small";
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { choose_mesh(std::nullopt, env({{"LOCKSTEP_MACHINE", file}}), &config); }),
              HasSubstr("mesh is 'auto', and no layout fits into the"));
}

// A plan is not so exact that a tenth of a percent is worth another axis.
TEST(AutoMesh, OfAlikeLayoutsItTakesTheSimplest) {
  const auto candidate = [](plan::Layout layout, double step) {
    plan::Candidate one{.layout = layout, .estimate = {}, .loses = ""};
    one.estimate.step = step;
    return one;
  };
  const std::vector<plan::Candidate> best{
      candidate({.data = 2, .tensor = 2}, 1.0), candidate({.data = 4, .zero = 3}, 1.005),
      candidate({.data = 4, .zero = 1}, 1.01), candidate({.data = 4}, 1.015),
      candidate({.data = 1}, 1.5)};
  EXPECT_EQ(simplest_of(best).layout, best[2].layout);
  const std::vector<plan::Candidate> apart{best[0], best[4]};
  EXPECT_EQ(simplest_of(apart).layout, apart[0].layout);
}

TEST(AutoMesh, AStrategyThatIsAskedForStays) {
  TrainConfig config = language(4);
  choose_mesh(3, env(), &config);
  EXPECT_EQ(config.strategy, "zero3");
}

TEST(AutoMesh, ALayoutBecomesSettingsAndOptions) {
  TrainConfig config = language(8);
  take_layout({.data = 2,
               .pipe = 2,
               .tensor = 2,
               .schedule = "zb-h1",
               .zero = 1,
               .micro_batch = 3,
               .global_batch = 48,
               .activations = plan::Activations::kRecomputed,
               .divides_rows = true},
              &config);
  EXPECT_EQ(config.mesh, "data=2,pipe=2,tensor=2");
  EXPECT_EQ(config.batch_size, 24);
  EXPECT_THAT(options_of_layout(config),
              testing::ElementsAre("--mesh", "data=2,pipe=2,tensor=2", "--strategy", "zero1",
                                   "--pipe-schedule", "zb-h1", "--divided-rows", "true",
                                   "--gradient-checkpointing", "true", "--micro-batches", "8",
                                   "--batch-size", "24"));
  take_layout({.data = 8, .zero = 3, .shard_ranks = 4, .global_batch = 96}, &config);
  EXPECT_EQ(config.mesh, "data=2,shard=4");
  EXPECT_EQ(config.micro_batches, 0);
}

TEST(AutoMesh, RanksThatWereNotMeasuredShareTheHostOtherwise) {
  const TestDirectory folder;
  plan::Calibration machine = this_machine(2, env());
  const std::string file = folder.write("machine.json", plan::to_json(machine));
  const plan::Machine four = this_machine(4, env({{"LOCKSTEP_MACHINE", file}})).machine;
  EXPECT_EQ(four.ranks_per_host, 4);
  EXPECT_DOUBLE_EQ(four.memory, machine.machine.memory / 2);
  EXPECT_DOUBLE_EQ(four.float32, machine.machine.float32 / 2);
}

}  // namespace auto_mesh_test
}  // namespace lockstep::inline v0::engine
