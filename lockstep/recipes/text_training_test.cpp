#include "lockstep/recipes/text_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/optim/learning_rate.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/recipes/recipe_runs_test.h"
#include "lockstep/report/text_width.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0::text_training_test {
namespace {

using recipe_runs_test::losses;
using recipe_runs_test::train;

void write_model(const TestDirectory& dir) {
  recipe_runs_test::write_texts(dir, {.train = 96, .dev = 20});
}

TrainConfig small(const TestDirectory& dir, const std::string& output, int64_t nproc) {
  TrainConfig config = default_config("text");
  config.data = dir / "data";
  config.model = dir / "model";
  config.output = dir / output;
  config.nproc = nproc;
  config.epochs = 2;
  config.batch_size = 8;
  config.lr = 1e-3;
  config.log_every = 1;
  config.timeout = 60;
  return resolved(config);
}

// The loop written out, on DistributedDataParallel itself.
std::vector<double> by_hand(const TrainConfig& config) {
  std::vector<double> means;
  testing::run_threads(static_cast<int>(config.nproc), [&](Communicator& comm) {
    const TextData texts = load_text_data(text_input(config));
    data::DistributedSampler sampler(texts.train.size(), comm, {.seed = config.seed});
    data::Loader loader(texts.train, sampler, {.batch_size = config.batch_size});
    DistributedDataParallel model(make_text_model(text_input(config), texts), comm);
    const auto options = torch::optim::AdamWOptions(config.lr).weight_decay(config.weight_decay);
    optim::FusedAdamW optimizer(optim::decay_groups(*model.module(), options), options);
    const int64_t total = config.epochs * loader.batches();
    const auto schedule =
        optim::linear({.total_steps = total, .warmup = {.ratio = config.warmup_ratio}});
    int64_t step = 0;
    for (int64_t epoch = 0; epoch < config.epochs; ++epoch) {
      sampler.set_epoch(epoch);
      for (auto& batch : loader) {
        optimizer.zero_grad();
        const auto loss = torch::nn::functional::cross_entropy(
            model(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.lengths),
            batch.labels);
        loss.backward();
        optim::set_learning_rate(optimizer, config.lr * schedule.factor(step++));
        optimizer.step();
        at::Tensor mean = at::tensor({loss.item<double>()}, at::kDouble);
        comm.all_reduce(mean, ReduceOp::kAvg);
        if (comm.rank() == 0) means.push_back(mean.item<double>());
      }
    }
  });
  return means;
}

TEST(TextRecipe, IsTheLoopWrittenOutBitForBit) {
  const TestDirectory dir;
  write_model(dir);
  for (const int64_t nproc : {1, 2}) {
    const TrainConfig config = small(dir, "run" + std::to_string(nproc), nproc);
    const TrainResult result = train(config);
    EXPECT_EQ(result.evaluation.samples, 20);
    const auto expected = by_hand(config), found = losses(config);
    ASSERT_EQ(found.size(), static_cast<size_t>(result.state.step));
    EXPECT_EQ(found, expected) << nproc;
  }
}

TEST(TextRecipe, LayersThatAreComputedAgainChangeNoBit) {
  const TestDirectory dir;
  write_model(dir);
  TrainConfig config = small(dir, "plain", 2);
  train(config);
  const auto expected = losses(config);
  config.gradient_checkpointing = true;
  config.output = dir / "again";
  train(config);
  EXPECT_EQ(losses(config), expected);
  config.offload_checkpoints = true;  // which the CPU has no use for
  config.output = dir / "offloaded";
  train(config);
  EXPECT_EQ(losses(config), expected);
}

TEST(TextRecipe, EveryStrategyFollows) {
  const TestDirectory dir;
  write_model(dir);
  TrainConfig config = small(dir, "ddp", 2);
  train(config);
  const auto expected = losses(config);
  for (const std::string& strategy : strategy_names()) {
    config.strategy = strategy;
    config.output = dir / strategy;
    train(config);
    const auto found = losses(config);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 1e-4) << strategy << ", step " << i;
  }
}

TEST(TextRecipe, AResumedRunIsTheWholeOne) {
  const TestDirectory dir;
  write_model(dir);
  const TrainConfig whole = small(dir, "whole", 2);
  train(whole);
  TrainConfig part = small(dir, "part", 2);
  part.max_steps = 5;  // within an epoch
  train(part);
  const RunFolder folder{part.output};
  const auto recorded = recorded_config(folder.last());
  ASSERT_TRUE(recorded.has_value());
  EXPECT_EQ(*recorded, part);
  part.max_steps = 0;
  train(part, /*resume=*/true);
  EXPECT_EQ(losses(part), losses(whole));
  const Checkpoint a = read_checkpoint(folder.last()),
                   b = read_checkpoint(RunFolder{whole.output}.last());
  for (const auto& [name, tensor] : a.model.tensors)
    EXPECT_TRUE(tensor.equal(*b.model.find(name))) << name;
  EXPECT_FALSE(recorded_config(dir / "model").has_value()) << "a foreign directory";
}

TEST(TextRecipe, BadInputIsNamed) {
  const TestDirectory dir;
  write_model(dir);
  const auto refused = [&](const std::function<void(TrainConfig&)>& spoil) {
    try {
      TrainConfig config = small(dir, "bad", 1);
      spoil(config);
      validate_text_input(resolved(config));
      check_text_model(config);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(refused([](TrainConfig&) {}), "");
  EXPECT_THAT(refused([](TrainConfig& c) { c.padding = "none"; }), HasSubstr("padding is"));
  EXPECT_THAT(refused([](TrainConfig& c) { c.max_length = 1; }), HasSubstr("max_length is 1"));
  EXPECT_THAT(refused([](TrainConfig& c) { c.warmup_ratio = 2; }), HasSubstr("warmup_ratio is 2"));
  EXPECT_THAT(refused([](TrainConfig& c) { c.model = "huge"; }), HasSubstr("huge"));
  EXPECT_THAT(refused([](TrainConfig& c) { c.vocab = "/nowhere"; }), HasSubstr("/nowhere"));
  EXPECT_THAT(refused([&](TrainConfig& c) {
                BertConfig config = bert_preset("mini");
                config.max_position_embeddings = 40;
                config.vocab_size = 7;
                config.labels = {"a", "b"};
                const BertClassifier model(config);
                const TextData texts = load_text_data(text_input(c));
                save_model(*model, text_checkpoint_files(model, texts), dir / "tiny");
                c.model = dir / "tiny";
              }),
              HasSubstr("tiny"));
}

// "Try next" speaks the data's language.
TEST(TextTraining, TheTextToTryIsOneOfTheDevSet) {
  const TestDirectory dir;
  const std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nfilm\ndull\n";
  const auto example = [&](const std::string& name, const std::string& dev) {
    std::filesystem::create_directory(dir / name);
    dir.write(name + "/vocab.txt", vocab);
    dir.write(name + "/train.tsv", "a film\t0\na dull film\t1\n");
    dir.write(name + "/dev.tsv", dev);
    return load_text_data({.data = dir / name}).example;
  };
  EXPECT_EQ(example("english", "a dull film\t1\na film\t0\n"), "a dull film");
  EXPECT_EQ(example("options", "-x\t1\na film\t0\n"), "a film");
  EXPECT_EQ(example("long", std::string(70, 'a') + "\t1\n\033[2Ja\t1\nfilm\t0\n"), "film");
  EXPECT_EQ(example("longest", std::string(70, 'a') + "\t1\n"), std::string(60, 'a'));
  data::generate_sentences(dir / "chinese", {.train = 20, .dev = 5});
  EXPECT_TRUE(has_chinese(load_text_data({.data = dir / "chinese"}).example));
}

}  // namespace
}  // namespace lockstep::inline v0::text_training_test
