// Every product of ways against one process.
#include "lockstep/parallel/lm/parallel_lm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <mutex>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::parallel_lm_test {
namespace {

using ::testing::HasSubstr;
using Values = std::map<std::string, at::Tensor>;

LmConfig config_of(bool tied) {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 5;
  config.num_attention_heads = 4;
  config.num_key_value_heads = tied ? 4 : 2;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  config.tie_word_embeddings = tied;
  config.attention_bias = config.mlp_bias = tied;
  return config;
}

// The same on every thread, without a generator.
ParameterParts values_of(const LmConfig& config) {
  std::map<std::string, double> starts;
  double at = 1;
  for (const auto& [name, shape] : lm_parameter_shapes(config)) starts[name] = at += 13;
  return [starts](const std::string& name, int64_t begin, const at::Tensor& part) {
    const at::Tensor values = torch::arange(begin, begin + part.numel(), at::kDouble)
                                  .mul_(1.7)
                                  .add_(starts.at(name))
                                  .sin_();
    part.copy_(name.find("norm") != std::string::npos ? values * 0.2 + 1 : values * 0.2);
  };
}

TransformerLm whole_of(const LmConfig& config, at::ScalarType type) {
  TransformerLm lm(config, LmOptions{.initial = InitialParameters::kNone});
  const ParameterParts values = values_of(config);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters_of(lm)) values(name, 0, tensor.view({-1}));
  lm->to(type);
  return lm;
}

// Of eight sequences; the rows of the mesh have their shares in order, with as many targets each.
struct Batch {
  at::Tensor ids, targets;
};
Batch batch_of(int64_t step) {
  const at::Tensor ids =
      (torch::arange(96, at::kLong) * 17 + step * 11).pow(2).remainder(50).view({8, 12});
  at::Tensor targets = ids.roll(-1, 1).clone();
  for (int64_t i = 0; i < 8; ++i) targets[i][(i + step) % 12] = -100;
  return {ids, targets};
}

constexpr double kMaxNorm = 0.7;
constexpr int64_t kSteps = 20;
torch::optim::AdamWOptions adamw() {
  return torch::optim::AdamWOptions(2e-3).weight_decay(0.1);
}

struct Course {
  std::vector<double> losses, norms;
  double evaluated = 0;
  Values end;
};

Course of_one_process(const LmConfig& config, at::ScalarType type) {
  TransformerLm lm = whole_of(config, type);
  std::vector<at::Tensor> decayed, others;
  for (const auto& [name, tensor] : parameters_of(lm))
    (tensor.dim() > 1 ? decayed : others).push_back(tensor);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, std::make_unique<torch::optim::AdamWOptions>(adamw()));
  groups.emplace_back(others,
                      std::make_unique<torch::optim::AdamWOptions>(adamw().weight_decay(0)));
  torch::optim::AdamW optimizer(groups, adamw());
  Course run;
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto [ids, targets] = batch_of(step);
    optimizer.zero_grad();
    const at::Tensor loss = lm->loss(ids, targets);
    loss.backward();
    run.norms.push_back(torch::nn::utils::clip_grad_norm_(lm->parameters(), kMaxNorm));
    optimizer.step();
    run.losses.push_back(loss.item<double>());
  }
  const auto [ids, targets] = batch_of(kSteps);
  run.evaluated = lm->loss(ids, targets).item<double>();
  for (const auto& [name, tensor] : parameters_of(lm)) run.end[name] = tensor.detach().clone();
  return run;
}

struct Product {
  std::string mesh;
  int ranks = 1;
  int zero = 0;
  std::string schedule = "1f1b";
  int micro_batches = 0;
  bool divides_rows = false;
};
LmParallelism parallelism_of(const Product& product) {
  LmParallelism how = parse_parallelism(product.mesh);
  how.zero = product.zero;
  how.schedule = product.schedule;
  how.micro_batches = product.micro_batches;
  how.divides_rows = product.divides_rows;
  return how;
}
std::string shown(const Product& product) {
  return product.mesh + " zero " + std::to_string(product.zero) + " " + product.schedule + " " +
         std::to_string(product.micro_batches) + (product.divides_rows ? " divided rows" : "");
}

Course of_product(const Product& product, const LmConfig& config, at::ScalarType type) {
  Course run;
  std::mutex mutex;
  testing::run_threads(product.ranks, [&](Communicator& comm) {
    ParallelLm model(config, comm, parallelism_of(product),
                     {.values = values_of(config), .dtype = type});
    model.make_optimizer(adamw());
    Communicator rows = model.rows();
    const int64_t share = 8 / rows.size();
    const auto row_of = [&](int64_t step) {
      const auto [ids, targets] = batch_of(step);
      return LmRowBatch{ids.narrow(0, rows.rank() * share, share),
                        targets.narrow(0, rows.rank() * share, share)};
    };
    const auto mean = [&](double value) {
      const at::Tensor sum = torch::full({1}, value, at::kDouble);
      rows.all_reduce(sum);
      return sum.item<double>() / rows.size();
    };
    Course mine;
    for (int64_t step = 0; step < kSteps; ++step) {
      mine.losses.push_back(mean(model.step(row_of(step))));
      mine.norms.push_back(*model.update({.max_norm = kMaxNorm}).grad_norm);
    }
    mine.evaluated = mean(model.evaluate(row_of(kSteps)));
    const NamedTensors whole = model.gather();
    EXPECT_EQ(whole.empty(), comm.rank() != 0);
    for (const auto& [name, tensor] : whole) mine.end[name] = tensor;
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) run = mine;
  });
  return run;
}

void expect_near(const Course& run, const Course& expected, double within,
                 const std::string& what) {
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(run.losses[step], expected.losses[step], within * expected.losses[step])
        << what << " " << step;
    EXPECT_NEAR(run.norms[step], expected.norms[step], within * expected.norms[step] * 10)
        << what << " " << step;
  }
  EXPECT_NEAR(run.evaluated, expected.evaluated, within * expected.evaluated) << what;
  ASSERT_EQ(run.end.size(), expected.end.size()) << what;
  for (const auto& [name, value] : expected.end) {
    const double most = value.abs().max().item<double>();
    EXPECT_LT((run.end.at(name) - value).abs().max().item<double>(), within * most)
        << what << " " << name;
  }
}

const std::vector<Product> kProducts{{"data=1", 1},
                                     {"data=1", 1, 1, "1f1b", 4},
                                     {"data=2", 2, 1},
                                     {"data=4", 4, 3},
                                     {"pipe=2", 2, 0, "zb-h1", 4},
                                     {"tensor=2", 2},
                                     {"tensor=2", 2, 0, "1f1b", 2, true},
                                     {"data=2,tensor=2", 4, 2},
                                     {"data=2,pipe=2", 4, 1, "zb-h1", 4},
                                     {"pipe=2,tensor=2", 4, 0, "interleaved", 4},
                                     {"tensor=2,data=2", 4, 3, "1f1b", 2, true},
                                     {"data=2,pipe=2,tensor=2", 8, 1},
                                     {"pipe=2,data=2,tensor=2", 8, 1, "zb-v", 4, true},
                                     {"pipe=4,tensor=2", 8, 0, "1f1b", 8}};

TEST(ParallelLm, EveryProductIsOneProcess) {
  for (const bool tied : {false, true}) {
    const LmConfig config = config_of(tied);
    const Course expected = of_one_process(config, at::kDouble);
    EXPECT_LT(expected.losses.back(), expected.losses.front());
    for (const Product& product : kProducts) {
      if (tied && product.zero > 1 && product.mesh.find("pipe") != std::string::npos) continue;
      expect_near(of_product(product, config, at::kDouble), expected, 1e-10,
                  shown(product) + (tied ? " tied" : ""));
    }
  }
}

TEST(ParallelLm, InFloat32ItIsNearAndRepeatsBitForBit) {
  const LmConfig config = config_of(false);
  const Course expected = of_one_process(config, at::kFloat);
  for (const Product& product : {Product{"data=2,pipe=2,tensor=2", 8, 1},
                                 Product{"pipe=2,tensor=2", 4, 0, "zb-h1", 4, true}}) {
    const Course run = of_product(product, config, at::kFloat);
    expect_near(run, expected, 1e-3, shown(product));
    const Course again = of_product(product, config, at::kFloat);
    EXPECT_EQ(run.losses, again.losses);
    EXPECT_EQ(run.norms, again.norms);
    for (const auto& [name, value] : run.end) EXPECT_TRUE(value.equal(again.end.at(name))) << name;
  }
}

}  // namespace
}  // namespace lockstep::parallel_lm_test
