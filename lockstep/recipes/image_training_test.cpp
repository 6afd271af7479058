#include "lockstep/recipes/image_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/digits.h"
#include "lockstep/data/shapes.h"
#include "lockstep/recipes/image_data.h"
#include "lockstep/recipes/recipe_runs_test.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/supervised_task.h"

namespace lockstep::inline v0::image_training_test {

using recipe_runs_test::losses;
using recipe_runs_test::train;

// Without dropout: ranks that are threads share one generator.
TrainConfig small(const TestDirectory& dir, const std::string& output, int64_t nproc) {
  data::generate_digits(dir / "data", {.train = 512, .test = 101});
  TrainConfig config;
  config.data = dir / "data";
  config.output = dir / output;
  config.nproc = nproc;
  config.epochs = 2;
  config.dropout1 = config.dropout2 = 0;
  config.log_every = 1;
  config.timeout = 60;
  return resolved(config);
}

void expect_same(const std::filesystem::path& a, const std::filesystem::path& b) {
  const Checkpoint left = read_checkpoint(a), right = read_checkpoint(b);
  for (const auto& [name, tensor] : left.model.tensors)
    EXPECT_TRUE(tensor.equal(*right.model.find(name))) << name;
  for (const auto& [name, tensor] : left.optimizer.tensors)
    EXPECT_TRUE(tensor.whole().equal(right.optimizer.find(name)->whole())) << name;
  EXPECT_TRUE(left.ranks.find("running_loss")->equal(*right.ranks.find("running_loss")));
}

TEST(MnistRecipe, LeavesItsFilesAndCountsEveryTestSample) {
  const TestDirectory dir;
  const TrainConfig config = small(dir, "run", 2);
  const TrainResult result = train(config);
  EXPECT_EQ(result.evaluation.samples, 101);
  EXPECT_EQ(result.state.step, 8);
  EXPECT_EQ(result.state.samples, 1024);
  const RunFolder folder{config.output};
  for (const auto& path : {folder.config(), folder.metrics(), folder.result(), folder.report()}) {
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
  }
  EXPECT_EQ(train_config_from_json(read_checkpoint(folder.best()).config_json, "c"), config);
  EXPECT_EQ(find_checkpoint(folder.root), folder.best());
  EXPECT_THROW(find_checkpoint(dir / "data"), CheckpointError);
  const auto json = nlohmann::json::parse(std::ifstream(folder.result()));
  EXPECT_EQ(json.at("steps"), 8);
  EXPECT_EQ(json.at("accuracy").get<double>(), result.state.accuracy);
  recipe_runs_test::expect_predicted(result);
  // Samples are of one shape, and the batch itself is not what a forward leaves.
  for (const RankMemory& rank : result.memory)
    EXPECT_NEAR(rank.predicted.activations, rank.allocated.activations, 8);  // scalars apart
  train(config);  // once more: the former run is moved, not mixed in
  EXPECT_EQ(losses(config).size(), 8u);
  EXPECT_TRUE(checkpoint_exists(folder.root / "previous" / "checkpoints" / "last"));
}

TEST(MnistRecipe, AShortRunHasACurveWithItsRate) {
  const TestDirectory dir;
  TrainConfig config = small(dir, "run", 2);
  config.log_every = 50;
  train(config);
  const auto lines = recipe_runs_test::metrics_of(config, "train");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("step"), 1);
  EXPECT_EQ(lines[1].at("step"), 8);
  for (const auto& line : lines) {
    EXPECT_EQ(line.at("learning_rate"), config.lr);
    EXPECT_FALSE(line.contains("grad_norm")) << "nothing is clipped";
  }
}

TEST(MnistRecipe, ABatchThatMemoryCannotHoldIsOneLine) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(memory_refusal(64, 8 * kGiB, 2, 16 * kGiB), "");
  const std::string refusal = memory_refusal(99'999'999'999, 9 * kGiB, 2, 16 * kGiB);
  EXPECT_THAT(refusal, ::testing::AllOf(::testing::HasSubstr("batch_size is 99999999999"),
                                        ::testing::HasSubstr("9.0 GiB of memory on a rank"),
                                        ::testing::HasSubstr("2 ranks of this host have 16 GiB")));
  EXPECT_EQ(refusal.find('\n'), std::string::npos);
}

TEST(MnistRecipe, RanksFollowTheSingleProcess) {
  const TestDirectory dir;
  const TrainConfig alone = small(dir, "alone", 1);
  train(alone);
  const auto expected = losses(alone);
  ASSERT_EQ(expected.size(), 8u);
  // On four ranks two of them: what more than two ranks change is proven in the strategies' rooms.
  for (const int64_t nproc : {2, 4}) {
    for (const std::string strategy :
         {"ddp", "average", "ring", "naive-ring", "horovod", "zero1", "zero3"}) {
      if (nproc == 4 && strategy != "ring" && strategy != "zero3") continue;
      TrainConfig config = small(dir, strategy + std::to_string(nproc), nproc);
      config.strategy = strategy;
      train(config);
      const auto found = losses(config);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i])
            << strategy << " " << nproc << " step " << i;
      }
    }
  }
}

// 512 samples in steps of 100, the last of 12, and in steps of which some ranks have no sample.
TEST(MnistRecipe, RanksThatCannotShareAStepEquallyFollowTheSingleProcess) {
  const TestDirectory dir;
  const auto of_step = [&](const std::string& name, int64_t nproc, int64_t step_samples) {
    TrainConfig config = small(dir, name, nproc);
    config.step_samples = step_samples;
    config.max_steps = step_samples < 100 ? 4 : 0;
    return resolved(config);
  };
  for (const int64_t step_samples : {100, 2}) {
    const std::string steps = "-" + std::to_string(step_samples);
    const TrainConfig alone = of_step("alone" + steps, 1, step_samples);
    EXPECT_EQ(alone.batch_size, step_samples);
    const int64_t samples = train(alone).state.samples;
    const auto expected = losses(alone);
    ASSERT_EQ(expected.size(), step_samples < 100 ? 4u : 12u);
    for (const char* strategy : {"ddp", "average", "ring", "horovod", "zero1", "zero3"}) {
      TrainConfig config = of_step(strategy + steps, 3, step_samples);
      EXPECT_EQ(config.step_samples, step_samples);
      config.strategy = strategy;
      EXPECT_EQ(train(config).state.samples, samples);
      const auto found = losses(config);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]) << strategy << " step " << i;
    }
  }
}

// As where a launcher starts the ranks again on another number of hosts.
TEST(MnistRecipe, ARunGoesOnWhereRanksCannotShareAStepEqually) {
  const TestDirectory dir;
  const TrainConfig whole = small(dir, "whole", 1);
  train(whole);
  const auto expected = losses(whole);
  TrainConfig parts = whole;
  parts.output = dir / "parts";
  int64_t stop = 0;
  for (const int64_t nproc : {2, 3, 5}) {
    TrainConfig now = parts;
    now.nproc = nproc;
    now.step_samples = samples_of_step(parts);
    now.max_steps = nproc == 5 ? 0 : stop += 3;
    now = resolved(now);
    EXPECT_NO_THROW(check_resumable(parts, now));
    train(now, nproc != 2);
    parts = now;
  }
  const auto found = losses(parts);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]) << i;
}

TEST(MnistRecipe, ResumedEqualsUninterruptedBitForBit) {
  const TestDirectory dir;
  TrainConfig whole = small(dir, "whole", 2);
  whole.log_every = 3;
  train(whole);
  TrainConfig parts = whole;
  parts.output = dir / "parts";
  for (const int64_t stop : {3, 5}) {  // within the first epoch, within the second
    parts.max_steps = stop;
    train(parts, stop != 3);
  }
  parts.max_steps = 0;
  train(parts, true);
  expect_same(RunFolder{whole.output}.last(), RunFolder{parts.output}.last());
  EXPECT_EQ(losses(whole), losses(parts));
}

// The average is what is evaluated and saved; training goes on as without it.
TEST(MnistRecipe, AnAverageOfTheParametersIsSavedAndTheRunGoesOnBitForBit) {
  const TestDirectory dir;
  const TrainConfig plain = small(dir, "plain", 2);
  train(plain);
  TrainConfig whole = small(dir, "whole", 2);
  whole.ema = 0.5;
  const TrainResult result = train(whole);
  EXPECT_EQ(losses(whole), losses(plain));
  EXPECT_EQ(result.memory[0].predicted.average, result.memory[0].predicted.parameters);
  recipe_runs_test::expect_predicted(result);
  const Checkpoint saved = read_checkpoint(RunFolder{whole.output}.last()),
                   trained = read_checkpoint(RunFolder{plain.output}.last());
  const Safetensors& training = saved.tensors.at("training");
  ASSERT_FALSE(training.tensors.empty());
  for (const auto& [name, tensor] : training.tensors) {
    EXPECT_TRUE(tensor.equal(*trained.model.find(name))) << name;
    const at::Tensor& averaged = *saved.model.find(name);
    EXPECT_FALSE(averaged.equal(tensor)) << name;
    EXPECT_TRUE(averaged.allclose(tensor, 0.1, 0.1)) << name;
  }
  const auto evaluations = [](const TrainConfig& config) {
    std::vector<double> values;
    for (const auto& line : recipe_runs_test::metrics_of(config, "test"))
      values.push_back(line.at("loss"));
    return values;
  };
  EXPECT_NE(evaluations(whole), evaluations(plain));

  for (const bool async_save : {false, true}) {
    TrainConfig parts = small(dir, "parts", 2);
    parts.ema = 0.5;
    parts.async_save = async_save;
    parts.max_steps = 6;  // within the second epoch
    train(parts);
    parts.max_steps = 0;
    train(parts, true);
    expect_same(RunFolder{whole.output}.last(), RunFolder{parts.output}.last());
    const Checkpoint resumed = read_checkpoint(RunFolder{parts.output}.last());
    for (const auto& [name, tensor] : training.tensors)
      EXPECT_TRUE(tensor.equal(*resumed.tensors.at("training").find(name))) << name;
    EXPECT_EQ(resumed.tensors.at("training").metadata, training.metadata);
    EXPECT_EQ(evaluations(parts).back(), evaluations(whole).back());
  }

  TrainConfig later = plain;
  later.epochs = 3;
  later.ema = 0.5;
  EXPECT_THAT(message_of<CheckpointError>([&] { train(later, true); }),
              ::testing::HasSubstr("has no training.safetensors"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { check_resumable(plain, later); }),
              ::testing::HasSubstr("ema was 0.0 and is now 0.5"));
  for (const std::string strategy : {"zero3", "fsdp"}) {
    TrainConfig divided = whole;
    divided.strategy = strategy;
    EXPECT_EQ(message_of<InvalidArgument>([&] { resolved(divided); }),
              "ema is 0.5; give 0 where ranks divide or share one copy of the parameters, as with "
              "strategy " +
                  strategy);
  }
}

TrainConfig small_apart(const TestDirectory& dir, const std::string& output, int64_t nproc) {
  TrainConfig config = small(dir, output, nproc);
  config.strategy = "diloco";
  config.diloco_steps = 3;
  return resolved(config);
}

// Ranks train apart, and a run stands within a period where it stops.
TEST(MnistRecipe, UnderDiLoCoARunRepeatsAndGoesOnBitForBit) {
  const TestDirectory dir;
  const TrainConfig whole = small_apart(dir, "whole", 2), again = small_apart(dir, "again", 2);
  const TrainResult result = train(whole);
  EXPECT_EQ(result.state.step, 8);
  EXPECT_GT(result.memory[0].predicted.state, 2 * result.memory[0].predicted.parameters)
      << "the outer parameters and their momentum, beside SGD's";
  recipe_runs_test::expect_predicted(result);
  train(again);
  EXPECT_EQ(losses(again), losses(whole));
  expect_same(RunFolder{whole.output}.last(), RunFolder{again.output}.last());
  for (const bool async_save : {false, true}) {
    TrainConfig parts = small_apart(dir, "parts", 2);
    parts.async_save = async_save;
    for (const int64_t stop : {2, 5, 0}) {
      parts.max_steps = stop;
      train(parts, stop != 2);
    }
    expect_same(RunFolder{whole.output}.last(), RunFolder{parts.output}.last());
    const Checkpoint left = read_checkpoint(RunFolder{whole.output}.last()),
                     right = read_checkpoint(RunFolder{parts.output}.last());
    for (const char* file : {"diloco", "diloco-rank-0", "diloco-rank-1"})
      for (const auto& [name, tensor] : left.tensors.at(file).tensors)
        EXPECT_TRUE(tensor.equal(*right.tensors.at(file).find(name))) << file << ": " << name;
    EXPECT_EQ(losses(parts).back(), losses(whole).back());
  }
  const auto other = small(dir, "other", 2);
  train(other);
  EXPECT_NE(losses(other), losses(whole)) << "another training than ddp";
}

// On other ranks the average of the recorded ones goes on.
TEST(MnistRecipe, UnderDiLoCoOtherRanksGoOn) {
  const TestDirectory dir;
  TrainConfig parts = small_apart(dir, "parts", 2);
  parts.max_steps = 5;
  train(parts);
  for (const int64_t nproc : {1, 3}) {
    TrainConfig now = parts;
    now.nproc = nproc;
    now.step_samples = samples_of_step(parts);
    now.max_steps = nproc == 1 ? 6 : 0;
    now = resolved(now);
    EXPECT_NO_THROW(check_resumable(parts, now));
    train(now, true);
    parts = now;
  }
  EXPECT_LT(losses(parts).back(), losses(parts).front());
  TrainConfig ddp = parts;
  ddp.strategy = "ddp";
  ddp.epochs = 3;
  ddp.diloco_steps = TrainConfig().diloco_steps;
  EXPECT_NO_THROW(check_resumable(parts, resolved(ddp)));
  EXPECT_EQ(train(resolved(ddp), true).state.step, 12);
}

TEST(MnistRecipe, PartitionGivesEveryRankItsPart) {
  const TestDirectory dir;
  TrainConfig config = small(dir, "run", 2);
  config.sampler = "partition";
  config.strategy = "average";
  EXPECT_EQ(train(config).state.samples, 1024);
}

TEST(MnistRecipe, RefusesBeforeTheFirstStep) {
  const TestDirectory dir;
  TrainConfig config = small(dir, "run", 2);
  EXPECT_THROW(train(config, true), CheckpointError);  // nothing to resume
  config.init_from = dir / "none.safetensors";
  EXPECT_THROW(train(config), InvalidArgument);
  config = small(dir, "run", 1);
  train(config);
  config.nproc = 2;
  EXPECT_THROW(train(config, true), CheckpointError);  // made by another number of ranks
  config.data = dir / "nothing";
  EXPECT_THROW(train(config), DataError);
}

// Forty pictures, in batches of twenty.
TrainConfig small_cifar(const TestDirectory& dir, const std::string& output, int64_t nproc) {
  data::generate_shapes(dir / "shapes", {.train = 40, .test = 21});
  TrainConfig config = default_config("cifar");
  config.data = dir / "shapes";
  config.output = dir / output;
  config.nproc = nproc;
  config.model = "simple-cnn";
  config.batch_size = 20 / nproc;
  config.epochs = 3;
  config.dropout1 = config.dropout2 = 0;
  config.log_every = 1;
  config.timeout = 60;
  return resolved(config);
}

void expect_close(const std::vector<double>& found, const std::vector<double>& expected,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], tolerance * expected[i]) << what << ", step " << i;
}

TEST(CifarRecipe, RanksFollowTheSingleProcessAugmentationIncluded) {
  const TestDirectory dir;
  const TrainConfig alone = small_cifar(dir, "alone", 1);
  EXPECT_EQ(train(alone).evaluation.samples, 21);
  const auto expected = losses(alone);
  ASSERT_EQ(expected.size(), 6u);
  TrainConfig two = small_cifar(dir, "two", 2);
  two.workers = 3;
  train(two);
  expect_close(losses(two), expected, 1e-5, "two ranks");
  TrainConfig plain = small_cifar(dir, "plain", 1);
  plain.augment = false;
  train(plain);
  EXPECT_GT(std::abs(losses(plain)[0] - expected[0]), 1e-5);  // augmentation was there at all
}

TEST(CifarRecipe, ResumedEqualsUninterruptedBitForBit) {
  const TestDirectory dir;
  const TrainConfig whole = small_cifar(dir, "whole", 2);
  train(whole);
  TrainConfig parts = whole;
  parts.output = dir / "parts";
  for (const int64_t stop : {1, 4, 0}) {  // within epochs: the schedule and the augmentation go on
    parts.max_steps = stop;
    train(parts, stop != 1);
  }
  expect_same(RunFolder{whole.output}.last(), RunFolder{parts.output}.last());
  EXPECT_EQ(losses(whole), losses(parts));
}

// Statistics are those of the last step, or averaged as the parameters are.
TEST(CifarRecipe, AnAverageMayHaveTheBuffersToo) {
  const TestDirectory dir;
  TrainConfig config = small_cifar(dir, "last", 2);
  config.model = "resnet18";
  config.epochs = 1;
  config.ema = 0.5;
  train(config);
  const Checkpoint last = read_checkpoint(RunFolder{config.output}.last());
  config.output = dir / "averaged";
  config.ema_buffers = true;
  train(resolved(config));
  const Checkpoint averaged = read_checkpoint(RunFolder{config.output}.last());
  int64_t statistics = 0;
  for (const auto& [name, tensor] : last.model.tensors) {
    const bool differs = name.find("running_") != std::string::npos;
    statistics += differs ? 1 : 0;
    EXPECT_EQ(tensor.equal(*averaged.model.find(name)), !differs) << name;
    if (differs) {
      EXPECT_TRUE(tensor.equal(*averaged.tensors.at("training").find(name))) << name;
    }
  }
  EXPECT_EQ(statistics, 40) << "of ResNet-18's twenty BatchNorms";
}

// What is evaluated is what is saved, statistics included.
TEST(CifarRecipe, UnderDiLoCoTheSavedModelIsTheEvaluatedOne) {
  const TestDirectory dir;
  TrainConfig config = small_cifar(dir, "run", 2);
  config.model = "resnet18";
  config.epochs = 1;
  config.max_steps = 1;
  config.strategy = "diloco";
  const double measured = train(resolved(config)).evaluation.loss;
  const Checkpoint saved = read_checkpoint(RunFolder{config.output}.last());
  ImageModel model = make_image_model(config);
  set_module_state(model, saved.model.tensors, "saved");
  const ImageData data = load_image_data(config, config.data);
  testing::run_threads(1, [&](Communicator& comm) {
    EXPECT_NEAR(evaluate_classifier(model, data.test, comm, 10, 500).loss, measured,
                1e-5 * measured);
  });
}

TEST(CifarRecipe, TheScheduleIsTheOptimizers) {
  const TestDirectory dir;
  TrainConfig config = small_cifar(dir, "run", 1);
  config.max_steps = 4;  // of 6; the warm-up is the first epoch's 2
  train(config);
  const auto optimizer = read_checkpoint(RunFolder{config.output}.last()).optimizer;
  const auto group = nlohmann::json::parse(optimizer.metadata.at("group.0"));
  const double factor = (1 + std::cos(std::numbers::pi * 1 / 4)) / 2;  // step 3
  EXPECT_NEAR(group.at("lr").get<double>(), 0.02 * factor, 1e-12);
  EXPECT_EQ(group.at("weight_decay").get<double>(), 5e-4);
  EXPECT_EQ(nlohmann::json::parse(optimizer.metadata.at("group.1")).at("weight_decay"), 0.0);
}

TEST(CifarRecipe, SyncBatchNormFollowsTheSingleProcess) {
  const TestDirectory dir;
  TrainConfig alone = small_cifar(dir, "alone", 1);
  alone.model = "resnet18";
  alone.epochs = 1;
  alone.lr = 0.01;
  train(alone);
  TrainConfig two = small_cifar(dir, "two", 2);
  two.model = alone.model;
  two.epochs = alone.epochs;
  two.lr = alone.lr;
  two.sync_batch_norm = true;
  const TrainResult result = train(two);
  EXPECT_EQ(result.evaluation.samples, 21);
  expect_close(losses(two), losses(alone), 1e-4, "two ranks");
  // Names are the model's own, as torchvision's.
  const auto state = read_checkpoint(RunFolder{two.output}.last()).model;
  EXPECT_NE(state.find("layer4.1.bn2.running_var"), nullptr);
}

TEST(CifarRecipe, Bfloat16FollowsFloat32Roughly) {
  const TestDirectory dir;
  TrainConfig config = small_cifar(dir, "float", 1);
  train(config);
  const auto expected = losses(config);
  config.output = dir / "bf16";
  config.amp = "bf16";
  train(config);
  const auto found = losses(config);
  expect_close(found, expected, 0.05, "bf16");
  EXPECT_NE(found, expected);
}

}  // namespace lockstep::inline v0::image_training_test
