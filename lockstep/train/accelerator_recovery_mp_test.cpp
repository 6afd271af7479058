// A user's loop with Accelerator under a launcher that replaces dead ranks: it ends as one that
// nothing happened to.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/env.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/recover/rollback_recovery.h"
#include "lockstep/recover/test_deaths.h"
#include "lockstep/recover/test_net.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/lm_mesh_strategy.h"

namespace lockstep::inline v0::accelerator_recovery_mp_test {
namespace {

using recover_test::Deaths;
using recover_test::Moments;
using recover_test::TestNet;
namespace fs = std::filesystem;

constexpr int64_t kWidth = 6, kSteps = 14;

struct How {
  std::string strategy = "ddp";
  std::string precision = "no";
  int64_t accumulation = 1;
  int ranks = 3;
  Deaths deaths = {};
  int replacements = 0;
};

// What a rank has of a kind of model.
struct Points {
  using Model = TestNet;
  int64_t size() const { return 45; }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor ids =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    return {torch::sin(ids.unsqueeze(1) * 0.7 + at::arange(kWidth) * 1.3), ids % 3};
  }
  static TestNet make() { return TestNet(kWidth); }
  template <typename Prepared>
  static at::Tensor loss(Prepared& model, const data::Batch& batch) {
    return torch::nn::functional::cross_entropy(model(batch.input), batch.target);
  }
  static std::shared_ptr<Strategy> strategy(const std::string& name) { return make_strategy(name); }
};

struct Sentences {
  using Model = TransformerLm;
  at::Tensor ids = (at::arange(24 * 7, at::kLong) * 7).pow(2).add_(7).remainder(19).view({-1, 7});
  int64_t size() const { return ids.size(0); }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    const at::Tensor own = ids.index_select(0, rows);
    return {own.narrow(1, 0, 6).contiguous(), own.narrow(1, 1, 6).contiguous()};
  }
  static TransformerLm make() {
    LmConfig config;
    config.vocab_size = 20;
    config.hidden_size = 16;
    config.intermediate_size = 24;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.max_position_embeddings = 16;
    config.hidden_dropout = 0.1;
    torch::manual_seed(7);
    return TransformerLm(config);
  }
  template <typename Prepared>
  static at::Tensor loss(Prepared& model, const data::Batch& batch) {
    return model(batch.input, at::Tensor(), batch.target);
  }
  static std::shared_ptr<Strategy> strategy(const std::string& mesh) {
    return make_lm_mesh_strategy(parse_parallelism(mesh));
  }
};

template <typename Data>
void train(Communicator& comm, const fs::path& folder, const How& how) {
  Moments moments(how.deaths, folder / "deaths");
  const Data data;
  RollbackRecovery run(comm, {.every = 3});
  while (true) try {
      typename Data::Model net = Data::make();
      Accelerator accelerator(run.comm(), {.mixed_precision = how.precision,
                                           .gradient_accumulation_steps = how.accumulation,
                                           .strategy = Data::strategy(how.strategy)});
      data::SequentialSampler sampler(data.size());
      data::Loader<Data> whole(data, sampler, {.batch_size = 2});
      auto [model, loader] = accelerator.prepare(net, whole);
      const auto adam = torch::optim::AdamWOptions(0.01);
      const auto own = accelerator.strategy().state().make_optimizer(
          {torch::optim::OptimizerParamGroup(net->parameters())}, adam);
      auto [optimizer] = accelerator.prepare(*own);
      torch::manual_seed(100 + static_cast<uint64_t>(run.comm().rank()));
      if (run.state()) accelerator.restore_share(*run.state());
      const auto share = [&](at::Tensor memory) { return accelerator.share(std::move(memory)); };
      run.begin(share);
      moments.done(run.step());
      while (run.step() < kSteps) {
        for (auto& batch : loader) {
          moments.at("loaded");
          const auto accumulates = accelerator.accumulate(model);
          accelerator.backward([&] { return Data::loss(model, batch); });
          moments.at("backward");
          optimizer.step();
          optimizer.zero_grad();
          if (!accelerator.sync_gradients()) continue;
          run.stepped(share);
          moments.done(run.step());
          moments.at("stepped", run.step());
          if (run.step() == kSteps) break;
        }
      }
      const NamedTensors all{{"share", accelerator.share()}};
      run.finish();
      write_safetensors(folder / ("rank" + std::to_string(run.comm().rank())), all);
      return;
    } catch (...) {
      run.recover();
    }
}

class AcceleratorRecovery : public ::testing::Test {
 protected:
  AcceleratorRecovery() {
    if (!in_rank()) ::setenv("ACCELERATOR_RECOVERY_FOLDER", dir_.path().c_str(), 1);
  }
  static bool in_rank() { return process_env()("RANK").has_value(); }

  template <typename Data>
  void run(const std::string& name, const How& how) {
    if (!in_rank()) fs::create_directories(dir_ / name / "deaths");
    testing::expect_ranks(
        how.ranks,
        [&](Communicator& comm) {
          train<Data>(comm,
                      fs::path(process_env()("ACCELERATOR_RECOVERY_FOLDER").value_or("")) / name,
                      how);
        },
        {.deadline = std::chrono::seconds(100), .replacements = how.replacements}, name);
  }

  // All that a rank goes on from has the same bits.
  template <typename Data>
  void expect_as_undisturbed(const How& killed) {
    How quiet = killed;
    quiet.deaths = {};
    quiet.replacements = 0;
    run<Data>(killed.strategy, quiet);
    run<Data>(killed.strategy + "-killed", killed);
    if (in_rank() || HasFailure()) return;
    EXPECT_EQ(recover_test::deaths_in(dir_ / (killed.strategy + "-killed") / "deaths"),
              killed.deaths.size());
    for (int r = 0; r < killed.ranks; ++r) {
      const std::string file = "rank" + std::to_string(r);
      const Safetensors found = read_safetensors(dir_ / (killed.strategy + "-killed") / file),
                        expected = read_safetensors(dir_ / killed.strategy / file);
      EXPECT_TRUE(at::equal(*found.find("share"), *expected.find("share")))
          << killed.strategy << " rank " << r;
    }
  }

  TestDirectory dir_;
};

TEST_F(AcceleratorRecovery, WhereEveryRankHasAll) {
  expect_as_undisturbed<Points>({.precision = "fp16",
                                 .accumulation = 2,
                                 .deaths = {{"loaded", 1, 1, 0},
                                            {"backward", 5, 0, 0},
                                            {"stepped", 6, 2, 0},
                                            {"stepped", 11, 1, 1}},
                                 .replacements = 8});
}

TEST_F(AcceleratorRecovery, WhereTheStateIsDivided) {
  for (const char* strategy : {"zero1", "zero3"})
    expect_as_undisturbed<Points>({.strategy = strategy,
                                   .deaths = {{"backward", 2, 2, 0}, {"stepped", 9, 0, 0}},
                                   .replacements = 5});
}

TEST_F(AcceleratorRecovery, WhereTheModelIsDivided) {
  expect_as_undisturbed<Sentences>({.strategy = "tensor=2",
                                    .ranks = 2,
                                    .deaths = {{"loaded", 4, 1, 0}, {"stepped", 8, 0, 0}},
                                    .replacements = 5});
}

}  // namespace
}  // namespace lockstep::inline v0::accelerator_recovery_mp_test
