#include "lockstep/recipes/lm_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <tuple>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/pretrained/language_model.h"
#include "lockstep/recipes/lm_evaluation.h"
#include "lockstep/recipes/recipe_runs_test.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::lm_training_test {
namespace {

using recipe_runs_test::expect_predicted;
using recipe_runs_test::metrics_of;
using recipe_runs_test::train;
using ::testing::HasSubstr;

// Rows of unlike lengths, so that batches have unlike numbers of targets.
void write_rows(const TestDirectory& dir) {
  std::string rows;
  for (int i = 0; i < 60; ++i)
    rows += "{\"text\": \"" + std::string(static_cast<size_t>(2 + i * 7 % 11), "abcde"[i % 5]) +
            "f\"}\n";
  dir.write("train.jsonl", rows);
}

// Without dropout: ranks that are threads share one generator.
std::string write_model(const TestDirectory& dir, int64_t experts = 0) {
  LmConfig config;
  config.vocab_size = 7;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_local_experts = experts;
  config.router_aux_loss_coef = experts > 0 ? 0.01 : 0;
  config.max_position_embeddings = 8;
  config.bos_token_id.reset();
  config.eos_token_ids = {0};
  torch::manual_seed(3);
  const TransformerLm model(config);
  const CheckpointFiles files{.config_json = to_json(config),
                              .others = tokenizers::Characters::of("abcdef\n", "t").files()};
  save_model(*model, files, dir / "model");
  return dir / "model";
}

TrainConfig small(const TestDirectory& dir, const std::string& output, int64_t nproc) {
  TrainConfig config = default_config("lm");
  config.data = dir / "train.jsonl";
  config.model = dir / "model";
  config.output = dir / output;
  config.nproc = nproc;
  config.epochs = 2;
  config.context = 8;
  config.batch_size = 8 / nproc;
  config.lr = 1e-2;
  config.log_every = 1;
  config.timeout = 60;
  return resolved(config);
}

TEST(LmTraining, ModelsWithExpertsTrainAndSayWhatTheirRoutersDo) {
  const TestDirectory dir;
  write_rows(dir);
  write_model(dir, 4);
  const TrainConfig config = small(dir, "experts", 1);
  const TrainResult result = train(config);
  const auto lines = metrics_of(config, "train");
  EXPECT_LT(result.loss, 0.95 * lines.front().at("loss").get<double>());
  for (const auto& line : lines) {
    EXPECT_GE(line.at("learning_rate").get<double>(), 0);  // a schedule begins or ends there
    EXPECT_GT(line.at("grad_norm").get<double>(), 0);
    for (const std::string layer : {"experts/0/", "experts/1/"}) {
      double shares = 0;
      for (int e = 0; e < 4; ++e)
        shares += line.at(layer + "share/" + std::to_string(e)).get<double>();
      EXPECT_NEAR(shares, 1, 1e-12);
      EXPECT_EQ(line.at(layer + "left_out").get<double>(), 0);
      EXPECT_GT(line.at(layer + "entropy").get<double>(), 0);
      EXPECT_LE(line.at(layer + "entropy").get<double>(), std::log(4.0) + 1e-6);
    }
  }
  const LmConfig saved = load_lm(RunFolder{config.output}.best())->config();
  EXPECT_EQ(saved.num_local_experts, 4);
}

// The tokens of all ranks, as one process has them.
TEST(LmTraining, RoutersOfAMeshSayWhatThoseOfOneProcessDo) {
  const TestDirectory dir;
  write_rows(dir);
  write_model(dir, 4);
  TrainConfig one = small(dir, "one", 1);
  one.max_steps = 4;
  train(one);
  TrainConfig mesh = one;
  mesh.output = dir / "mesh";
  mesh.nproc = 4;
  mesh.batch_size = 2;
  mesh.mesh = "data=2,expert=2";
  mesh.strategy = "zero1";
  train(mesh = resolved(mesh));
  const auto expected = metrics_of(one, "train"), found = metrics_of(mesh, "train");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    // Without a mesh the routers' losses are in it, 0.01 times some 2.
    EXPECT_NEAR(found[i].at("loss"), expected[i].at("loss"), 0.03) << i;
    int figures = 0;
    for (const auto& [name, value] : expected[i].items()) {
      if (!name.starts_with("experts/")) continue;
      ++figures;
      // Rows weigh their routers' losses as they weigh their targets, of which they have unlike
      // numbers.
      EXPECT_NEAR(found[i].at(name), value, i == 0 ? 1e-6 : 0.05) << i << " " << name;
    }
    EXPECT_EQ(figures, 2 * 8);
  }
}

TEST(LmTraining, RanksTrainAsOneProcess) {
  const TestDirectory dir;
  write_rows(dir);
  write_model(dir);
  const TrainConfig alone = small(dir, "alone", 1);
  const TrainResult one = train(alone);
  recipe_runs_test::expect_predicted(one);
  const auto losses = metrics_of(alone, "train");
  ASSERT_GT(losses.size(), 8u);
  EXPECT_LT(one.loss, 0.9 * losses.front().at("loss").get<double>());
  for (const int64_t ranks : {2, 3, 4}) {
    TrainConfig config = small(dir, "ranks" + std::to_string(ranks), ranks);
    config.step_samples = alone.batch_size;  // which three cannot share equally
    config = resolved(config);
    const TrainResult many = train(config);
    const auto theirs = metrics_of(config, "train");
    ASSERT_EQ(theirs.size(), losses.size());
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(theirs[i].at("loss"), losses[i].at("loss"), 1e-5) << i;
    EXPECT_NEAR(many.evaluation.loss, one.evaluation.loss, 1e-5);
    EXPECT_EQ(many.evaluation.samples, one.evaluation.samples);
  }
}

// Blocks that are computed again, and what ZeRO divides: other memory, the same bits.
TEST(LmTraining, MemoryIsSavedWithoutChangingANumber) {
  const TestDirectory dir;
  write_rows(dir);
  write_model(dir);
  const TrainConfig plain = small(dir, "plain", 2);
  train(plain);
  TrainConfig again = small(dir, "again", 2);
  again.gradient_checkpointing = true;
  train(again);
  EXPECT_EQ(metrics_of(again, "train").back().at("loss"),
            metrics_of(plain, "train").back().at("loss"));
  again = small(dir, "sharded", 2);
  again.gradient_checkpointing = true;
  again.strategy = "zero3";
  train(again);
  const auto found = metrics_of(again, "train"), expected = metrics_of(plain, "train");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i].at("loss"), expected[i].at("loss"), 1e-6) << i;
}

// Two copies of the parameters, each shared by two ranks: the numbers of one a host.
TEST(LmTraining, ShardsOfAMeshShareTheirCopy) {
  const TestDirectory dir;
  write_rows(dir);
  write_model(dir);
  TrainConfig config = small(dir, "one", 4);
  config.strategy = "zero3";
  const TrainResult one = train(config);
  ASSERT_GT(one.memory.front().allocated.parameters, 0);
  const auto expected = metrics_of(config, "train");
  for (const auto& [strategy, mesh, copies] :
       std::vector<std::tuple<std::string, std::string, int>>{
           {"zero3", "data=2,shard=2", 2}, {"zero3", "data=4", 4}, {"fsdp", "data=2,shard=2", 2}}) {
    config.strategy = strategy;
    config.mesh = mesh;
    config.output = dir / (strategy + mesh);
    const TrainResult result = train(resolved(config));
    const auto found = metrics_of(config, "train");
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i].at("loss"), expected[i].at("loss"), 1e-6) << strategy << mesh << i;
    SCOPED_TRACE(strategy + mesh);
    expect_predicted(result);
    EXPECT_NEAR(result.evaluation.loss, one.evaluation.loss, 1e-6);
    if (strategy == "zero3") {
      EXPECT_EQ(result.memory.front().allocated.parameters,
                copies * one.memory.front().allocated.parameters);
    } else {
      EXPECT_LT(result.memory.front().allocated.parameters,
                2 * one.memory.front().allocated.parameters);
    }
  }
}

// Divided in whatever way, a run of two rows is a run of two ranks; a checkpoint of one goes on as
// another.
TEST(LmTraining, AMeshMayDivideTheModel) {
  const TestDirectory dir;
  write_rows(dir);
  write_model(dir);
  TrainConfig plain = small(dir, "plain", 2);
  plain.max_steps = 6;
  plain.save_every = 3;
  const TrainResult expected = train(plain);
  const auto losses = metrics_of(plain, "train");
  EXPECT_GT(losses.at(3).at("checkpoint_s").get<double>(), 0) << "the save after the third step";
  EXPECT_FALSE(losses.at(2).contains("checkpoint_s"));
  struct Way {
    std::string mesh, strategy;
    int64_t ranks;
    bool divided_rows = false, again = false;
  };
  for (const Way& way : {Way{"data=2,pipe=2", "zero1", 4},
                         {"data=2,tensor=2", "zero3", 4, true},
                         {"context=2,data=2", "ddp", 4, false, true},
                         {"data=2,pipe=2,tensor=2", "zero1", 8}}) {
    TrainConfig config = small(dir, way.mesh, way.ranks);
    config.batch_size = 4;
    config.max_steps = 3;
    config.save_every = 3;
    config.mesh = way.mesh;
    config.strategy = way.strategy;
    config.divided_rows = way.divided_rows;
    config.gradient_checkpointing = way.again;
    config = resolved(config);
    SCOPED_TRACE(way.mesh);
    expect_predicted(train(config));
    EXPECT_EQ(load_lm(dir / way.mesh / "checkpoints/last")->config().hidden_size, 16);
    config.max_steps = 6;
    const TrainResult result = train(config, true);
    const auto found = metrics_of(config, "train");
    ASSERT_EQ(found.size(), losses.size()) << way.mesh;
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i].at("loss"), losses[i].at("loss"), 1e-5) << way.mesh << " " << i;
    EXPECT_NEAR(result.evaluation.loss, expected.evaluation.loss, 1e-5) << way.mesh;
    EXPECT_NEAR(result.evaluation.accuracy, expected.evaluation.accuracy, 1e-5) << way.mesh;
    EXPECT_EQ(result.evaluation.samples, expected.evaluation.samples) << way.mesh;
    EXPECT_EQ(result.state.samples, expected.state.samples) << way.mesh;
  }
  // And without a mesh.
  TrainConfig config = small(dir, "data=2,pipe=2", 2);
  config.max_steps = 9;
  config.save_every = 3;
  plain.max_steps = 9;
  const TrainResult alone = train(config, true), whole = train(plain, true);
  EXPECT_NEAR(alone.evaluation.loss, whole.evaluation.loss, 1e-5);
}

// A prompt to try is no lone punctuation mark.
TEST(LmTraining, TheOpeningSaysSomething) {
  const TestDirectory dir;
  const auto opening = [&](const std::string& name, const std::string& dev) {
    std::filesystem::create_directory(dir / name);
    dir.write(name + "/train.txt", std::string(20, 'a') + " " + dev);
    dir.write(name + "/dev.txt", dev);
    return load_lm_data({.data = dir / name, .model = "tiny", .context = 4}).opening;
  };
  EXPECT_EQ(opening("plain", "one two three four\n"), "one two");
  EXPECT_EQ(opening("marks", "? no\n--- x y z, and so on\n\nthe way is long\n"), "the wa");
  EXPECT_EQ(opening("chinese", "我们去看电影吧\n"), "我们去");
  EXPECT_EQ(opening("nothing", "?!\n...\n"), "?");
}

TEST(LmTraining, AnEvaluationCountsEveryTargetOnce) {
  const TestDirectory dir;
  write_rows(dir);
  write_model(dir);
  const LmData data = load_lm_data(lm_input(small(dir, "out", 1)));
  TransformerLm model = load_lm(dir / "model");
  double nats = 0;
  int64_t targets = 0, right = 0;
  for (int64_t i = 0; i < data.dev.size(); ++i) {
    const auto batch = data.dev.batch(std::vector<int64_t>{i});
    const at::Tensor rows = model(batch.ids, batch.lengths).log_softmax(-1).detach();
    for (int64_t row = 0; row < rows.size(0); ++row) {
      const int64_t target = batch.targets[row].item<int64_t>();
      if (target == data::kNoTarget) continue;
      ++targets;
      nats -= rows[row][target].item<double>();
      right += rows[row].argmax().item<int64_t>() == target ? 1 : 0;
    }
  }
  testing::run_threads(3, [&](Communicator& comm) {
    TransformerLm own = load_lm(dir / "model");
    const Evaluation found = evaluate_lm(own, data.dev, comm, {.batch_size = 2});
    EXPECT_EQ(found.samples, targets);
    EXPECT_NEAR(found.loss, nats / static_cast<double>(targets), 1e-6);
    EXPECT_DOUBLE_EQ(found.accuracy, static_cast<double>(right) / static_cast<double>(targets));
    EXPECT_DOUBLE_EQ(found.metrics.front().second, std::exp(found.loss));
    EXPECT_TRUE(own->is_training());
  });
}

TEST(LmTraining, AResumedRunIsTheWholeOne) {
  const TestDirectory dir;
  write_rows(dir);
  TrainConfig whole = small(dir, "whole", 2);
  whole.model = "tiny";
  whole.dropout = 0;
  const TrainResult all = train(whole);
  TrainConfig part = whole;
  part.output = dir / "part";
  part.max_steps = 5;
  train(part);
  part.max_steps = 0;
  const TrainResult rest = train(part, /*resume=*/true);
  EXPECT_EQ(rest.state.step, all.state.step);
  EXPECT_EQ(rest.evaluation.loss, all.evaluation.loss);
  const auto one = load_lm(RunFolder{whole.output}.last()),
             two = load_lm(RunFolder{part.output}.last());
  for (size_t i = 0; i < one->parameters().size(); ++i)
    EXPECT_TRUE(at::equal(one->parameters()[i], two->parameters()[i])) << i;
}

TEST(LmTraining, TheBestCheckpointIsALanguageModel) {
  const TestDirectory dir;
  write_rows(dir);
  TrainConfig config = small(dir, "out", 1);
  config.model = "tiny";
  const TrainResult result = train(config);
  const RunFolder folder{config.output};
  LanguageModel saved = load_language_model(folder.best());
  EXPECT_EQ(saved.model->config().eos_token_ids, std::vector<int64_t>{0});  // the newline
  EXPECT_EQ(saved.model->config().max_position_embeddings, 8);
  EXPECT_EQ(recorded_config(folder.best()), config);
  const auto tests = metrics_of(config, "test");
  ASSERT_FALSE(tests.empty());
  EXPECT_DOUBLE_EQ(tests.back().at("perplexity"), std::exp(result.evaluation.loss));
  EXPECT_EQ(result.state.best_score, -std::min_element(tests.begin(), tests.end(),
                                                       [](const auto& a, const auto& b) {
                                                         return a.at("loss") < b.at("loss");
                                                       })
                                          ->at("loss")
                                          .get<double>());
}

TEST(LmTraining, WhatIsWrongIsNamedBeforeTheFirstStep) {
  const TestDirectory dir;
  write_rows(dir);
  write_model(dir);
  const auto error = [&](const auto& change) -> std::string {
    TrainConfig config = small(dir, "out", 1);
    change(config);
    try {
      config = resolved(config);
      check_lm_model(config);
      validate_lm_input(config);
    } catch (const Error& failure) {
      EXPECT_EQ(std::string(failure.what()).find('\n'), std::string::npos);
      return failure.what();
    }
    return "no error";
  };
  EXPECT_EQ(error([](TrainConfig&) {}), "no error");
  EXPECT_THAT(error([](TrainConfig& c) { c.context = 1; }), HasSubstr("context is 1"));
  EXPECT_THAT(error([](TrainConfig& c) { c.context = 9; }), HasSubstr("has positions for 8"));
  EXPECT_THAT(error([](TrainConfig& c) { c.model = "tiny", c.context = 10000; }),
              HasSubstr("less than a window of 10000"));
  EXPECT_THAT(error([](TrainConfig& c) { c.model = "giant"; }), HasSubstr("'giant'"));
  EXPECT_THAT(error([](TrainConfig& c) { c.dropout = 1; }), HasSubstr("dropout"));
  EXPECT_THAT(error([](TrainConfig& c) { c.clip = -1; }), HasSubstr("clip"));
  EXPECT_THAT(error([](TrainConfig& c) { c.tokenizer = "nowhere"; }), HasSubstr("nowhere"));
  dir.write("other.txt", "abcdefg, a letter more than the model knows\n");
  EXPECT_THAT(error([&](TrainConfig& c) { c.data = dir / "other.txt"; }),
              HasSubstr("a character that the vocabulary lacks"));
  EXPECT_THAT(
      error([&](TrainConfig& c) { c.data = dir / "other.txt", c.tokenizer = "characters"; }),
      HasSubstr("knows 7"));
}

}  // namespace
}  // namespace lockstep::inline v0::lm_training_test
