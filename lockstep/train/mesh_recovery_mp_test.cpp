// Trainer over a mesh that divides the model, under a launcher that replaces dead ranks: whichever
// axis a rank is on and whatever it is doing when it is killed, the run ends as one that nothing
// happened to.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/env.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/recover/test_deaths.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/long_tests.h"
#include "lockstep/train/lm_mesh_strategy.h"
#include "lockstep/train/timeless_metrics_test.h"
#include "lockstep/train/trainer.h"

namespace lockstep::inline v0::mesh_recovery_mp_test {
namespace {

using recover_test::Deaths;
using recover_test::Moments;
using train_test::metrics_of;
namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr int kRanks = 4;
constexpr int64_t kSteps = 16;

LmConfig small(int64_t experts) {
  LmConfig config;
  config.vocab_size = 20;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 16;
  config.hidden_dropout = 0.1;
  config.num_local_experts = experts;
  config.router_aux_loss_coef = experts > 0 ? 0.02 : 0;
  return config;
}

struct Sentences {
  const Moments* moments;
  at::Tensor ids = (at::arange(48 * 7, at::kLong) * 7).pow(2).add_(7).remainder(19).view({-1, 7});

  int64_t size() const { return ids.size(0); }
  data::Batch batch(std::span<const int64_t> indices) const {
    moments->at("loading");
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    const at::Tensor own = ids.index_select(0, rows);
    return {own.narrow(1, 0, 6).contiguous(), own.narrow(1, 1, 6).contiguous()};
  }
};

struct LmLoss {
  const Moments* moments;

  template <typename Model>
  LossOutput operator()(Model& model, const data::Batch& batch) const {
    const bool trains = at::GradMode::is_enabled();
    const at::Tensor loss = model(batch.input, at::Tensor(), batch.target);
    moments->at(trains ? "computed" : "evaluating");
    return {.loss = loss, .logits = {}, .labels = batch.target};
  }
};

class Watch final : public TrainCallback {
 public:
  explicit Watch(Moments& moments) : moments_(moments) {}
  void on_step(const TrainerState& state, const StepResult&) override {
    moments_.done(state.step);
    moments_.at("stepped", state.step);
  }
  void on_log(const TrainerState& state, const LogEvent&) override {
    moments_.at("logged", state.step);
  }
  void on_save(TrainerState& state, bool) override { moments_.at("saving", state.step); }

 private:
  Moments& moments_;
};

struct How {
  const char* mesh;
  int zero = 0;
  int64_t experts = 0;
  int64_t rows = 2;  // with batches of their own
  Deaths deaths = {};
  int replacements = 0;
};

bool in_rank() {
  return process_env()("RANK").has_value();
}

void train(Communicator& comm, const fs::path& folder, const How& how) {
  const int pid = ::getpid();
  Moments moments(how.deaths, folder.string() + "-deaths");
  Sentences sentences{&moments};
  const TrainingArguments args{.output_dir = folder,
                               .per_device_train_batch_size = 8 / how.rows,
                               .per_device_eval_batch_size = 6,
                               .num_train_epochs = 6,
                               .max_steps = kSteps,
                               .learning_rate = 0.01,
                               .weight_decay = 0.1,
                               .logging_steps = 2,
                               .eval_strategy = "epoch",
                               .save_strategy = "steps",
                               .save_steps = 3,
                               .save_total_limit = 2,
                               .disable_tqdm = true};
  moments.at("starting", 0);
  torch::manual_seed(7);
  TransformerLm model(small(how.experts));
  Parallelism parallelism = parse_parallelism(how.mesh);
  parallelism.zero = how.zero;
  // In the midst of a step's forwards.
  const auto prepare = [&](TransformerLm& part) {
    for (const std::string& layer : modules_named(*part, {"model.layers.*"}))
      wrap_forward<LmUnit::Signature>(
          *part, layer,
          [&moments](const auto& forward, const at::Tensor& rows, const LmPass& pass) {
            if (at::GradMode::is_enabled()) moments.at("layer");
            return forward(rows, pass);
          });
  };
  const std::shared_ptr<Strategy> strategy =
      make_lm_mesh_strategy(parallelism, {.prepare = prepare});
  Trainer<TransformerLm, Sentences, LmLoss> trainer(
      {.model = model,
       .comm = comm,
       .args = args,
       .train_dataset = &sentences,
       .eval_dataset = &sentences,
       .compute_loss = {&moments},
       .callbacks = {std::make_shared<Watch>(moments)},
       .saved = {.config_json = to_json(small(how.experts))},
       .strategy = strategy,
       .copy_every = 4});
  const TrainOutput output = trainer.train();
  EXPECT_EQ(::getpid(), pid);
  EXPECT_EQ(output.global_step, kSteps);
  const Metrics metrics = trainer.evaluate();
  // Parameters, the optimizer's state, and the number of dropout's masks.
  NamedTensors all{{"share", parallel_lm_of(*strategy)->share_in({})}};
  all.emplace_back(
      "loss",
      at::tensor({output.training_loss, find_metric(metrics, "eval_loss").value()}, at::kDouble));
  write_safetensors(folder / ("rank" + std::to_string(trainer.comm().rank())), all);
}

class MeshRecovery : public ::testing::TestWithParam<How> {
 protected:
  MeshRecovery() {
    if (!in_rank()) ::setenv("MESH_RECOVERY_FOLDER", dir_.path().c_str(), 1);
  }
  void run(const std::string& name, const How& how) {
    if (!in_rank()) fs::create_directories(dir_ / (name + "-deaths"));
    testing::expect_ranks(
        kRanks,
        [&](Communicator& comm) {
          train(comm, fs::path(process_env()("MESH_RECOVERY_FOLDER").value_or("")) / name, how);
        },
        {.deadline = seconds(testing::long_tests() ? 560 : 100), .replacements = how.replacements},
        name);
  }

  TestDirectory dir_;
};

TEST_P(MeshRecovery, ADeathAtAnyMomentCostsNoBit) {
  How quiet = GetParam();
  quiet.deaths = {};
  quiet.replacements = 0;
  run("undisturbed", quiet);
  run("killed", GetParam());
  if (in_rank() || HasFailure()) return;
  EXPECT_EQ(recover_test::deaths_in(dir_ / "killed-deaths"), GetParam().deaths.size());
  for (int r = 0; r < kRanks; ++r) {
    const std::string file = "rank" + std::to_string(r);
    const Safetensors found = read_safetensors(dir_ / "killed" / file),
                      expected = read_safetensors(dir_ / "undisturbed" / file);
    for (const auto& [name, tensor] : expected.tensors)
      EXPECT_TRUE(at::equal(*found.find(name), tensor)) << name << " of rank " << r;
  }
  EXPECT_EQ(metrics_of(dir_ / "killed"), metrics_of(dir_ / "undisturbed"));
  EXPECT_GE(metrics_of(dir_ / "killed").size(), static_cast<size_t>(kSteps / 2));
  EXPECT_EQ(checkpoint_steps(dir_ / "killed"), checkpoint_steps(dir_ / "undisturbed"));
  for (const auto& entry : fs::directory_iterator(dir_ / "killed"))
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(::testing::HasSubstr("partial")));
}

INSTANTIATE_TEST_SUITE_P(, MeshRecovery,
                         ::testing::Values(How{.mesh = "data=2,tensor=2",
                                               .zero = 3,
                                               .deaths = {{"starting", 0, 3, 0},
                                                          {"loading", 1, 1, 0},
                                                          {"layer", 3, 0, 0},
                                                          {"computed", 6, 3, 1},
                                                          {"stepped", 7, 2, 0},
                                                          {"saving", 9, 0, 1},
                                                          {"evaluating", 13, 2, 1},
                                                          {"logged", 14, 1, 1}},
                                               .replacements = 14},
                                           How{.mesh = "pipe=2,data=2",
                                               .deaths = {{"layer", 2, 3, 0},
                                                          {"layer", 5, 0, 0},
                                                          {"computed", 8, 1, 0},
                                                          {"saving", 12, 2, 0},
                                                          {"stepped", 16, 3, 1}},
                                               .replacements = 9},
                                           How{.mesh = "context=2,expert=2",
                                               .zero = 1,
                                               .experts = 2,
                                               .deaths = {{"layer", 1, 2, 0},
                                                          {"computed", 6, 0, 0},
                                                          {"logged", 10, 3, 0},
                                                          {"saving", 15, 1, 0}},
                                               .replacements = 8}),
                         [](const auto& info) {
                           std::string name = info.param.mesh;
                           for (char& c : name)
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace lockstep::inline v0::mesh_recovery_mp_test
