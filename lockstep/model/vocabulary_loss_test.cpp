#include "lockstep/model/vocabulary_loss.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <barrier>
#include <cmath>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/model/internal/arithmetic.h"
#include "lockstep/model/internal/lm_units.h"
#include "lockstep/model/transformer_lm.h"

namespace lockstep::inline v0::vocabulary_loss_test {
namespace {

using ::testing::HasSubstr;

struct Case {
  at::Tensor rows, weight, targets;
};

// Some targets are left out, the first and the last of them.
Case made(int64_t tokens, int64_t vocabulary, int64_t width, at::ScalarType type = at::kFloat) {
  torch::manual_seed(tokens + vocabulary);
  Case c{torch::randn({tokens, width}, type), torch::randn({vocabulary, width}, type),
         torch::randint(0, vocabulary, {tokens}, at::kLong)};
  for (int64_t i = 0; i < tokens; i += 5)
    if (tokens > 1) c.targets[i] = -100;
  return c;
}

struct Results {
  at::Tensor loss, drows, dweight;
};

template <typename Loss>
Results results(const Case& c, const Loss& loss, int backwards = 1) {
  const at::Tensor rows = c.rows.detach().clone().requires_grad_();
  const at::Tensor weight = c.weight.detach().clone().requires_grad_();
  Results found;
  for (int i = 0; i < backwards; ++i) {
    found.loss = loss(rows, weight, c.targets);
    (found.loss * (i + 1.5)).backward();
  }
  found.loss = found.loss.detach();
  found.drows = rows.grad();
  found.dweight = weight.grad();
  return found;
}

Results by_logits(const Case& c, int backwards = 1) {
  return results(
      c,
      [](const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& targets) {
        return next_token_loss(at::linear(rows, weight), targets);
      },
      backwards);
}
Results by_chunks(const Case& c, const VocabularyLossOptions& options = {}, int backwards = 1) {
  return results(
      c,
      [&](const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& targets) {
        return vocabulary_loss(rows, weight, targets, options);
      },
      backwards);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  const double most = b.abs().max().item<double>();
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() / std::max(most, 1e-30);
}

void expect_close(const Results& found, const Results& expected, double tolerance,
                  const std::string& what = {}) {
  EXPECT_LT(difference(found.loss, expected.loss), tolerance) << what;
  EXPECT_LT(difference(found.drows, expected.drows), tolerance) << what;
  EXPECT_LT(difference(found.dweight, expected.dweight), tolerance) << what;
}

bool equal(const Results& a, const Results& b) {
  return at::equal(a.loss, b.loss) && at::equal(a.drows, b.drows) &&
         at::equal(a.dweight, b.dweight);
}

TEST(VocabularyLoss, IsThatOfTheLogits) {
  for (const int64_t tokens : {1, 7, 64, 101}) {
    for (const int64_t chunk : {0, 1, 7, 50, 100, 101, 200}) {
      const std::string what = std::to_string(tokens) + " by " + std::to_string(chunk);
      const Case exact = made(tokens, 53, 20, at::kDouble);
      const VocabularyLossOptions options{.rows_at_a_time = chunk};
      expect_close(by_chunks(exact, options), by_logits(exact), 1e-12, what);
      const Case c{exact.rows.to(at::kFloat), exact.weight.to(at::kFloat), exact.targets};
      expect_close(by_chunks(c, options), by_logits(exact), 3e-6, what);
    }
  }
  // By its own chunks, of which there are several.
  const Case large = made(1100, 300, 40, at::kDouble);
  expect_close(by_chunks(large), by_logits(large), 1e-12);
}

// Of rows that are cut somewhere, each part divided by what all of them have: a part may have no target, or no row.
TEST(VocabularyLoss, SharesThatAreDividedByAllTargetsAddUp) {
  for (const at::ScalarType type : {at::kDouble, at::kHalf}) {  // the second is composed
    const Case c = made(40, 53, 20, type);
    c.targets.narrow(0, 10, 10).fill_(-100);
    const auto count = c.targets.ne(-100).sum().item<double>();
    const Results expected = by_logits(c);
    Results sum;
    std::vector<at::Tensor> drows;
    for (const auto& [first, many] : {std::pair{0, 10}, {10, 10}, {20, 0}, {20, 20}}) {
      const Case part{c.rows.narrow(0, first, many), c.weight, c.targets.narrow(0, first, many)};
      const Results found = by_chunks(part, {.divide_by = count});
      sum.loss = drows.empty() ? found.loss : sum.loss + found.loss;
      sum.dweight = drows.empty() ? found.dweight : sum.dweight + found.dweight;
      drows.push_back(found.drows);
    }
    sum.drows = at::cat(drows);
    expect_close(sum, expected, type == at::kDouble ? 1e-12 : 0.01);
  }
}

TEST(VocabularyLoss, TwoBackwardsAddUp) {
  const Case c = made(33, 40, 12, at::kDouble);
  expect_close(by_chunks(c, {}, 2), by_logits(c, 2), 1e-12);
}

TEST(VocabularyLoss, AGraphThatIsKeptGivesItsGradientsAgain) {
  const Case c = made(21, 40, 12);
  const at::Tensor weight = c.weight.clone().requires_grad_();
  const at::Tensor loss = vocabulary_loss(c.rows, weight, c.targets);
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = weight.grad().clone();
  loss.backward();
  EXPECT_TRUE(at::equal(weight.grad(), 2 * once));
  EXPECT_THAT(message_of<InvalidArgument>([&] { loss.backward(); }), HasSubstr("retain_graph"));
  const at::Tensor other = vocabulary_loss(c.rows, weight, c.targets);
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { other.backward({}, /*keep_graph=*/true, /*create_graph=*/true); }),
              HasSubstr("create_graph"));
}

// The gradient becomes grad(), not a copy of it.
TEST(VocabularyLoss, OnlyWhatIsWantedIsComputed) {
  const Case c = made(30, 40, 12);
  const at::Tensor weight = c.weight.clone().requires_grad_();
  vocabulary_loss(c.rows, weight, c.targets).backward();
  const Results both = by_logits(c);
  EXPECT_LT(difference(1.5 * weight.grad(), both.dweight), 3e-6);
  EXPECT_EQ(weight.grad().use_count(), 1);
  const at::Tensor rows = c.rows.clone().requires_grad_();
  vocabulary_loss(rows, c.weight, c.targets).backward();
  EXPECT_LT(difference(1.5 * rows.grad(), both.drows), 3e-6);
  const at::Tensor plain = vocabulary_loss(c.rows, c.weight, c.targets);
  EXPECT_FALSE(plain.requires_grad());
  EXPECT_LT(difference(plain, both.loss), 1e-6);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(vocabulary_loss(rows, weight, c.targets).requires_grad());
}

TEST(VocabularyLoss, WithoutTargetsItIsNoNumberAndMovesNothing) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    Case c = made(9, 40, 12, type);
    c.targets.fill_(-100);
    const Results found = by_chunks(c, {.rows_at_a_time = 4});
    EXPECT_TRUE(std::isnan(found.loss.item<double>()));
    EXPECT_EQ(found.drows.abs().max().item<double>(), 0);
    EXPECT_EQ(found.dweight.abs().max().item<double>(), 0);
    EXPECT_TRUE(std::isnan(by_logits(c).loss.item<double>()));
  }
}

TEST(VocabularyLoss, LargeLogitsAreNoTrouble) {
  Case c = made(20, 40, 12, at::kDouble);
  c.rows.mul_(200);
  const Case narrow{c.rows.to(at::kFloat), c.weight.to(at::kFloat), c.targets};
  expect_close(by_chunks(narrow), by_logits(c), 1e-4);
  c.rows[1].fill_(std::nan(""));
  EXPECT_TRUE(std::isnan(by_chunks(c).loss.item<double>()));
}

TEST(VocabularyLoss, EqualBitsEveryTime) {
  const int threads = at::get_num_threads();
  for (const bool half : {false, true}) {
    std::optional<amp::Autocast> autocast;
    if (half) autocast.emplace(amp::AutocastSettings{});
    const Case c = made(700, 520, 64);
    at::set_num_threads(1);
    const Results first = by_chunks(c);
    EXPECT_TRUE(equal(by_chunks(c), first));
    at::set_num_threads(2);
    const Results second = by_chunks(c);
    EXPECT_TRUE(equal(by_chunks(c), second));
    expect_close(second, first, 1e-5);
  }
  at::set_num_threads(threads);
}

// Odd sizes have a last tile and a last panel that are not full.
TEST(VocabularyLoss, InBFloat16ItIsAsNearAsTheLogits) {
  for (const int64_t vocabulary : {64, 333, 1030}) {
    for (const int64_t width : {32, 40, 96, 129}) {
      const Case exact = made(101, vocabulary, width, at::kDouble);
      Case c{exact.rows.to(at::kFloat), exact.weight.to(at::kFloat), exact.targets};
      c.rows.mul_(0.2), exact.rows.mul_(0.2);
      const Results truth = by_logits(exact);
      const amp::Autocast autocast(amp::AutocastSettings{});
      const Results found = by_chunks(c, {.rows_at_a_time = 40}), others = by_logits(c);
      const std::string what = std::to_string(vocabulary) + ", " + std::to_string(width);
      EXPECT_EQ(found.loss.scalar_type(), at::kFloat);
      EXPECT_EQ(found.drows.scalar_type(), at::kFloat);
      const auto away = [](const at::Tensor& a, const at::Tensor& b) {
        return ((a - b).norm() / b.norm()).item<double>();
      };
      EXPECT_LT(std::abs((found.loss - truth.loss).item<double>()), 0.02) << what;
      EXPECT_LT(away(found.drows, truth.drows), 1.2 * away(others.drows, truth.drows)) << what;
      EXPECT_LT(away(found.dweight, truth.dweight), 1.2 * away(others.dweight, truth.dweight))
          << what;
      EXPECT_LT(away(found.dweight, truth.dweight), 0.02) << what;
      EXPECT_GT(away(found.dweight, truth.dweight), 1e-5) << what;  // it is not float32
    }
  }
}

TEST(VocabularyLoss, ATokensScoreIsThatOfItsLogits) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    Case c = made(101, 53, 20, type);
    // Some are right: their rows point to the target's.
    for (int64_t i = 0; i < 40; ++i)
      if (c.targets[i].item<int64_t>() >= 0) c.rows[i] = c.weight[c.targets[i]];
    const at::Tensor logits = at::linear(c.rows, c.weight);
    const at::Tensor losses = at::cross_entropy_loss(logits, c.targets, {}, at::Reduction::None);
    const at::Tensor right = logits.argmax(1).eq(c.targets);
    EXPECT_GT(right.sum().item<int64_t>(), 20);
    for (const TokenScores& scores :
         {vocabulary_scores(c.rows, c.weight, c.targets),
          vocabulary_scores(c.rows, c.weight, c.targets, {.rows_at_a_time = 7}),
          token_scores(logits, c.targets)}) {
      EXPECT_LT(difference(scores.losses, losses), type == at::kDouble ? 1e-12 : 3e-6);
      EXPECT_TRUE(at::equal(scores.likeliest, right));
    }
  }
}

// Another type is computed by its logits.
TEST(VocabularyLoss, OtherTypesAreComposed) {
  const Case c = made(20, 40, 16, at::kBFloat16);
  expect_close(by_chunks(c), by_logits(c), 1e-9);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                vocabulary_loss(c.rows, c.weight, c.targets, {.deferred = make_deferred()});
              }),
              HasSubstr("deferred gradients are, on the CPU, for"));
}

// ---- a vocabulary that is divided ----

// Meets the other parts for every chunk.
class Meeting {
 public:
  explicit Meeting(int64_t parts) : barrier_(parts), given_(static_cast<size_t>(parts)) {}

  // All parts' tensors become `combined` of them.
  template <typename Combine>
  void meet(size_t part, const at::Tensor& mine, const Combine& combine) {
    given_[part] = mine.clone();
    barrier_.arrive_and_wait();
    const at::Tensor result = combine(given_);
    barrier_.arrive_and_wait();
    mine.copy_(result);
  }

 private:
  std::barrier<> barrier_;
  std::vector<at::Tensor> given_;
};

at::Tensor stacked(const std::vector<at::Tensor>& parts) {
  return at::stack(parts);
}

// On threads, each with its rows of the weight.
std::vector<Results> divided(const Case& c, const std::vector<int64_t>& sizes, bool reduces,
                             int64_t rows_at_a_time) {
  const auto parts = static_cast<int64_t>(sizes.size());
  Meeting meeting(parts);
  std::vector<Results> all(sizes.size());
  const auto run = [&](size_t part) {
    int64_t first = 0;
    for (size_t i = 0; i < part; ++i) first += sizes[i];
    VocabularyLossOptions options{.part = {.first = first, .all = c.weight.size(0), .combine = {}},
                                  .rows_at_a_time = rows_at_a_time};
    options.part.combine = [&, part](const at::Tensor& statistics) {
      if (!reduces) return meeting.meet(part, statistics, combined_statistics);
      combine_statistics(
          statistics,
          [&](const at::Tensor& x) {
            meeting.meet(part, x, [](const auto& given) { return stacked(given).amax(0); });
          },
          [&](const at::Tensor& x) {
            meeting.meet(part, x, [](const auto& given) { return stacked(given).sum(0); });
          });
    };
    all[part] = by_chunks({c.rows, c.weight.narrow(0, first, sizes[part]), c.targets}, options);
  };
  std::vector<std::thread> others;
  for (size_t part = 1; part < sizes.size(); ++part) others.emplace_back(run, part);
  run(0);
  for (std::thread& other : others) other.join();
  return all;
}

TEST(VocabularyLoss, PartsOfTheVocabularyGiveTheWhole) {
  const std::vector<std::vector<int64_t>> divisions{{53}, {26, 27}, {20, 1, 32}};
  for (const auto& sizes : divisions) {
    for (const bool reduces : {false, true}) {
      for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
        const Case c = made(47, 53, 20, type);
        const Results whole = by_logits(c);
        const auto parts = divided(c, sizes, reduces, 13);
        std::vector<at::Tensor> weights;
        at::Tensor drows = torch::zeros_like(whole.drows);
        for (const Results& part : parts) {
          EXPECT_TRUE(at::equal(part.loss, parts[0].loss));
          drows += part.drows;
          weights.push_back(part.dweight);
        }
        expect_close({parts[0].loss, drows, at::cat(weights)}, whole,
                     type == at::kDouble ? 1e-12 : 3e-6);
      }
    }
  }
}

// ---- the model ----

LmConfig small(bool tied) {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 44;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  config.tie_word_embeddings = tied;
  return config;
}

std::vector<at::Tensor> gradients(TransformerLm& lm) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : lm->parameters()) {
    all.push_back(parameter.grad().clone());
    parameter.mutable_grad() = at::Tensor();
  }
  return all;
}

TEST(VocabularyLoss, AModelsLossIsThatOfItsLogits) {
  for (const bool tied : {false, true}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      torch::manual_seed(3);
      TransformerLm lm(small(tied));
      lm->to(type);
      const double tolerance = type == at::kDouble ? 1e-12 : 1e-5;
      const at::Tensor lengths = torch::tensor({5, 1, 17}, at::kLong);
      const at::Tensor ids = torch::randint(0, 50, {23}, at::kLong), targets = ids.roll(-1);
      targets[22] = -100;
      const at::Tensor expected = next_token_loss(lm(ids, lengths), targets);
      expected.backward();
      const auto truth = gradients(lm);
      const at::Tensor loss = lm->loss(ids, targets, lengths);
      EXPECT_LT(difference(loss, expected), tolerance);
      loss.backward();
      const auto found = gradients(lm);
      for (size_t i = 0; i < truth.size(); ++i)
        EXPECT_LT(difference(found[i], truth[i]), tolerance) << lm->named_parameters().keys()[i];
      const at::Tensor batch = torch::randint(0, 50, {3, 9}, at::kLong), next = batch.roll(-1, 1);
      EXPECT_LT(difference(lm(batch, at::Tensor(), next), next_token_loss(lm(batch), next)),
                tolerance);
      EXPECT_LT(difference(lm->scores(batch, next).losses.mean(), lm->loss(batch, next)),
                tolerance);
    }
  }
}

TEST(VocabularyLoss, AHookedHeadIsAsked) {
  torch::manual_seed(3);
  TransformerLm lm(small(true));
  const at::Tensor ids = torch::randint(0, 50, {2, 9}, at::kLong), targets = ids.roll(-1, 1);
  const auto before = lm->loss(ids, targets).item<double>();
  at::Tensor seen;
  auto hook = wrap_forward<LmUnit::Signature>(
      *lm, "lm_head", [&](const auto& forward, const at::Tensor& rows, const LmPass& pass) {
        seen = forward(rows, pass);
        return seen * 2;
      });
  const auto doubled = lm->loss(ids, targets).item<double>();
  EXPECT_EQ(seen.sizes(), (std::vector<int64_t>{18, 50}));
  EXPECT_NEAR(doubled, next_token_loss(seen * 2, targets).item<double>(), 1e-6);
  EXPECT_GT(std::abs(doubled - before), 1e-3);
  EXPECT_NEAR(lm->scores(ids, targets).losses.mean().item<double>(), doubled, 1e-5);
  hook.remove();
  EXPECT_EQ(lm->loss(ids, targets).item<double>(), before);
}

TEST(VocabularyLoss, TheWeightsGradientMayComeLater) {
  torch::manual_seed(3);
  TransformerLm lm(small(false));
  const at::Tensor ids = torch::randint(0, 50, {20}, at::kLong), targets = ids.roll(-1);
  const auto backward =
      [&](const std::shared_ptr<lockstep::internal::DeferredGradients>& deferred) {
        const LmPass pass = lm->pass({12, 8}, {.deferred = deferred});
        at::Tensor x = ids;
        for (size_t i = 0; i + 1 < lm->units().size(); ++i) x = lm->units()[i]->forward(x, pass);
        head_loss(*lm->units().back(), x, targets, pass).backward();
      };
  backward(nullptr);
  const auto now = gradients(lm);
  const auto deferred = make_deferred();
  backward(deferred);
  EXPECT_FALSE(lm->named_parameters()["lm_head.weight"].grad().defined());
  run_deferred(*deferred);
  const auto later = gradients(lm);
  for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(at::equal(now[i], later[i]));
}

TEST(VocabularyLoss, BadInputIsOneLine) {
  const Case c = made(10, 40, 12);
  const auto line = [&](const Case& of, const VocabularyLossOptions& options = {}) {
    const std::string text = message_of<InvalidArgument>(
        [&] { vocabulary_loss(of.rows, of.weight, of.targets, options); });
    EXPECT_EQ(text.find('\n'), std::string::npos);
    return text;
  };
  EXPECT_THAT(line({c.rows, c.weight, c.targets.to(at::kInt)}), HasSubstr("int64 targets [N]"));
  EXPECT_THAT(line({c.rows.narrow(1, 0, 3), c.weight, c.targets}),
              HasSubstr("not [10, 3], [40, 12] and [10]"));
  EXPECT_THAT(line({c.rows, c.weight, at::Tensor()}), HasSubstr("give rows [N, width]"));
  Case outside{c.rows, c.weight, c.targets.clone()};
  outside.targets[3] = 40;
  EXPECT_THAT(line(outside), HasSubstr("40 is outside the vocabulary of 40"));
  outside.targets[3] = -1;
  EXPECT_THAT(line(outside), HasSubstr("-1 is outside"));
  EXPECT_THAT(line(c, {.part = {.first = 10, .all = 45, .combine = [](const at::Tensor&) {}}}),
              HasSubstr("a part from 10 of 40 rows, of a vocabulary of 45"));
  EXPECT_THAT(line(c, {.part = {.first = 0, .all = 45, .combine = {}}}), HasSubstr("combine()"));
  EXPECT_THAT(line(c, {.rows_at_a_time = -1}), HasSubstr("rows_at_a_time is -1"));
  EXPECT_THAT(line(c, {.divide_by = -1}), HasSubstr("give 0 or more"));
  TransformerLm lm(small(false));
  const at::Tensor ids = torch::randint(0, 50, {2, 9}, at::kLong);
  EXPECT_THAT(message_of<InvalidArgument>([&] { lm->loss(ids, ids.view({18})); }),
              HasSubstr("of the shape of ids"));
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { head_loss(*lm->units()[0], c.rows, c.targets, lm->pass({10})); }),
              HasSubstr("the model's last unit"));
}

}  // namespace
}  // namespace lockstep::inline v0::vocabulary_loss_test
