#include "lockstep/model/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <map>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::sampling_test {
namespace {

using ::testing::HasSubstr;

// How often each token is drawn.
std::map<int64_t, double> shares(const SamplingOptions& options, const at::Tensor& logits) {
  constexpr int kDraws = 20000;
  TokenSampler sampler(options);
  std::map<int64_t, double> shares;
  for (int i = 0; i < kDraws; ++i)
    shares[sampler.draw(logits.unsqueeze(0)).item<int64_t>()] += 1.0 / kDraws;
  return shares;
}

const at::Tensor kLogits = torch::log(torch::tensor({0.1, 0.4, 0.2, 0.3}));

void expect_shares(const SamplingOptions& options, const std::map<int64_t, double>& expected) {
  const auto found = shares(options, kLogits);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [token, share] : expected) EXPECT_NEAR(found.at(token), share, 0.015) << token;
}

TEST(TokenSampler, DrawsByProbability) {
  expect_shares({}, {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
  expect_shares({.temperature = 0}, {{1, 1}});
  expect_shares({.top_k = 2}, {{1, 4.0 / 7}, {3, 3.0 / 7}});
  expect_shares({.top_k = 9, .top_p = 0.75}, {{1, 4.0 / 9}, {3, 3.0 / 9}, {2, 2.0 / 9}});
  expect_shares({.top_p = 1e-9}, {{1, 1}});
  // Half the temperature squares the odds.
  expect_shares({.temperature = 0.5},
                {{0, 1 / 30.0}, {1, 16 / 30.0}, {2, 4 / 30.0}, {3, 9 / 30.0}});
}

TEST(TokenSampler, ASeedIsARow) {
  const at::Tensor logits = torch::zeros({1, 1000});
  const auto draws = [&](uint64_t seed) {
    TokenSampler sampler({.seed = seed});
    std::vector<int64_t> all;
    for (int i = 0; i < 20; ++i) all.push_back(sampler.draw(logits).item<int64_t>());
    return all;
  };
  EXPECT_EQ(draws(5), draws(5));
  EXPECT_NE(draws(5), draws(6));
}

TEST(TokenSampler, NonsenseIsNamed) {
  const auto says = [](const SamplingOptions& options) {
    return message_of<InvalidArgument>([&] { TokenSampler{options}; });
  };
  EXPECT_THAT(says({.temperature = -1}), HasSubstr("temperature is -1"));
  EXPECT_THAT(says({.top_k = -1}), HasSubstr("top_k is -1"));
  EXPECT_THAT(says({.top_p = 0}), HasSubstr("top_p is 0"));
  EXPECT_THAT(message_of<InvalidArgument>([] { TokenSampler({}).draw(torch::full({1, 3}, NAN)); }),
              HasSubstr("are no numbers"));
}

TEST(Generate, IsGreedyStepByStepAndStops) {
  torch::manual_seed(1);
  LmConfig config;
  config.vocab_size = 20;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.max_position_embeddings = 12;
  config.initializer_range = 0.3;
  TransformerLm lm(config);
  GenerateOptions options{.max_new_tokens = 6, .sampling = {.temperature = 0}};
  const std::vector<int64_t> prompt{3, 1, 4};
  const auto tokens = generate(lm, prompt, options);
  EXPECT_TRUE(lm->is_training());
  // What the whole text says at each place.
  std::vector<int64_t> text = prompt;
  for (const int64_t token : tokens) {
    const at::Tensor logits = lm(torch::tensor(text, at::kLong).unsqueeze(0))[0];
    EXPECT_EQ(logits[-1].argmax().item<int64_t>(), token);
    text.push_back(token);
  }
  EXPECT_EQ(tokens.size(), 6u);
  options.max_new_tokens = 100;
  EXPECT_EQ(generate(lm, prompt, options).size(), 9u);  // the positions end
  options.stop_ids = {tokens[0]};
  EXPECT_EQ(generate(lm, prompt, options).size(), 1u);
  options.stop_ids.clear();
  int calls = 0;
  options.on_token = [&](int64_t) { return ++calls < 3; };
  EXPECT_EQ(generate(lm, prompt, options).size(), 3u);
  EXPECT_THROW(generate(lm, {}, options), InvalidArgument);
  EXPECT_THROW(generate(lm, std::vector<int64_t>(12, 1), options), InvalidArgument);
}

TEST(Generate, AModelOfOnePositionSeesTheTokenBeforeAlone) {
  torch::manual_seed(1);
  LmConfig config;
  config.vocab_size = 20;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.max_position_embeddings = 1;
  config.initializer_range = 0.3;
  TransformerLm lm(config);
  const auto tokens = generate(
      lm, {3, 1}, {.max_new_tokens = 4, .sampling = {.temperature = 0}, .beyond_positions = true});
  ASSERT_EQ(tokens.size(), 4u);
  int64_t before = 1;
  for (const int64_t token : tokens) {
    EXPECT_EQ(lm(torch::tensor({{before}}, at::kLong)).argmax().item<int64_t>(), token);
    before = token;
  }
  EXPECT_THROW(generate(lm, {3}, {}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::sampling_test
