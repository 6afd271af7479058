#include "lockstep/train/mnist_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/digits.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::mnist_recipe_test {

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

TrainResult train(const TrainConfig& config, bool resume = false) {
  TrainResult result;
  std::mutex mutex;
  testing::run_threads(static_cast<int>(config.nproc), [&](Communicator& comm) {
    const auto mine = train_mnist(comm, config, {.resume = resume, .progress = false});
    const std::lock_guard lock(mutex);
    result = mine;
  });
  return result;
}

std::vector<double> losses(const TrainConfig& config) {
  std::vector<double> values;
  std::ifstream file(RunFolder{config.output}.metrics());
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.at("type") == "train") values.push_back(json.at("loss"));
  }
  return values;
}

void expect_same(const std::filesystem::path& a, const std::filesystem::path& b) {
  const Checkpoint left = read_checkpoint(a), right = read_checkpoint(b);
  for (const auto& [name, tensor] : left.model.tensors)
    EXPECT_TRUE(tensor.equal(*right.model.find(name))) << name;
  for (const auto& [name, tensor] : left.optimizer.tensors)
    EXPECT_TRUE(tensor.equal(*right.optimizer.find(name))) << name;
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
  train(config);  // once more: the former run is moved, not mixed in
  EXPECT_EQ(losses(config).size(), 8u);
  EXPECT_TRUE(checkpoint_exists(folder.root / "previous" / "checkpoints" / "last"));
}

TEST(MnistRecipe, RanksFollowTheSingleProcess) {
  const TestDirectory dir;
  const TrainConfig alone = small(dir, "alone", 1);
  train(alone);
  const auto expected = losses(alone);
  ASSERT_EQ(expected.size(), 8u);
  for (const int64_t nproc : {2, 4}) {
    for (const char* strategy : {"ddp", "average", "ring", "naive-ring"}) {
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
  EXPECT_THROW(train(config), CheckpointError);
  config = small(dir, "run", 1);
  train(config);
  config.nproc = 2;
  EXPECT_THROW(train(config, true), CheckpointError);  // made by another number of ranks
  config.data = dir / "nothing";
  EXPECT_THROW(train(config), DataError);
}

TEST(RunFolder, NamesWhatIsInTheWay) {
  const TestDirectory dir;
  dir.write("file", "x");
  EXPECT_THROW(prepare_run_folder({dir / "file"}), InvalidArgument);
  EXPECT_THROW(prepare_run_folder({dir / "file" / "below"}), InvalidArgument);
  EXPECT_THROW(prepare_run_folder({"/proc/lockstep"}), InvalidArgument);
  prepare_run_folder({dir / "new" / "deep"});
  EXPECT_TRUE(std::filesystem::is_empty(dir / "new" / "deep"));
}

}  // namespace lockstep::mnist_recipe_test
