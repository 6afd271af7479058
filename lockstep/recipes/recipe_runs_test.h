// Runs recipes on ranks that are threads, and reads what they write. For this room's tests.
#pragma once

#include <gtest/gtest.h>
#include <cmath>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/sentences.h"
#include "lockstep/model/bert.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/recipes/text_data.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::recipe_runs_test {

// Rank 0's result.
inline TrainResult train(const TrainConfig& config, bool resume = false) {
  TrainResult result;
  testing::run_threads(static_cast<int>(config.nproc), [&](Communicator& comm) {
    auto mine = train_recipe(comm, config, {.resume = resume, .progress = false});
    if (comm.rank() == 0) result = std::move(mine);
  });
  return result;
}

// The lines of a type ("train", "test") of a run's metrics.
inline std::vector<nlohmann::json> metrics_of(const TrainConfig& config, const std::string& type) {
  std::vector<nlohmann::json> found;
  std::ifstream file(RunFolder{config.output}.metrics());
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::json::parse(line);
    if (json.at("type") == type) found.push_back(std::move(json));
  }
  return found;
}

inline std::vector<double> losses(const TrainConfig& config) {
  std::vector<double> values;
  for (const auto& line : metrics_of(config, "train")) values.push_back(line.at("loss"));
  return values;
}

// Writes sentences to dir/data and a small BERT to dir/model. It has no dropout, since ranks that
// are threads share one generator.
inline BertClassifier write_texts(const TestDirectory& dir, const data::SentencesOptions& sizes) {
  data::generate_sentences(dir / "data", sizes);
  BertConfig config = bert_preset("mini");
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
  const TextInput input{.data = dir / "data"};
  const TextData texts = load_text_data(input);
  config.vocab_size = texts.tokenizer.vocabulary_size();
  config.labels = texts.labels;
  torch::manual_seed(3);
  BertClassifier model(config);
  save_model(*model, text_checkpoint_files(model, texts), dir / "model");
  return model;
}

// Of every rank: what was predicted before the first step is what it took, within 2 %.
inline void expect_predicted(const TrainResult& result) {
  ASSERT_FALSE(result.memory.empty());
  for (size_t r = 0; r < result.memory.size(); ++r) {
    const auto& [predicted, allocated] = result.memory[r];
    SCOPED_TRACE("rank " + std::to_string(r) + ": predicted " + to_json(predicted).dump() +
                 ", allocated " + to_json(allocated).dump());
    EXPECT_GT(allocated.activations, 0);
    EXPECT_LE(std::abs(result.memory[r].difference()), 0.02);
    EXPECT_EQ(predicted.parameters, allocated.parameters);
    EXPECT_EQ(predicted.gradients, allocated.gradients);
    EXPECT_EQ(predicted.state, allocated.state);
    EXPECT_EQ(predicted.buffers, allocated.buffers);
  }
}

}  // namespace lockstep::inline v0::recipe_runs_test
