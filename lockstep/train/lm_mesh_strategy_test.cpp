// A language model over a mesh under Trainer, Accelerator and a loop of one's own, against one process.
#include "lockstep/train/lm_mesh_strategy.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/model/lm_cache.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/pretrained/language_model.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/expert_figures.h"
#include "lockstep/train/trainer.h"

namespace lockstep::inline v0::lm_mesh_strategy_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using torch::optim::AdamWOptions;

constexpr double kNear = 1e-10;

LmConfig small(int64_t experts = 0) {
  LmConfig config;
  config.vocab_size = 20;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 16;
  config.num_local_experts = experts;
  config.router_aux_loss_coef = experts > 0 ? 0.02 : 0;
  return config;
}

// The same values on all ranks, without the generator that threads share; not those of any float32.
TransformerLm make_lm(const LmConfig& config = small()) {
  TransformerLm lm(config, LmOptions{.initial = InitialParameters::kNone});
  lm->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (auto& item : lm->named_parameters()) {
    at::Tensor& parameter = item.value();
    const at::Tensor values = at::arange(parameter.numel(), at::kDouble)
                                  .mul_(1.3)
                                  .add_(static_cast<double>(item.key().size()))
                                  .sin_()
                                  .mul_(0.3);
    parameter.copy_((parameter.dim() == 1 ? values + 1 : values).view(parameter.sizes()));
  }
  return lm;
}

// Sentences of six tokens; `salt` makes others.
struct Sentences {
  at::Tensor ids;
  explicit Sentences(int64_t count, int64_t salt = 7) {
    ids = (at::arange(count * 7, at::kLong) * salt).pow(2).add_(salt).remainder(19).view({-1, 7});
  }
  int64_t size() const { return ids.size(0); }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    const at::Tensor own = ids.index_select(0, rows);
    return {own.narrow(1, 0, 6).contiguous(), own.narrow(1, 1, 6).contiguous()};
  }
};

struct LmLoss {
  template <typename Model>
  LossOutput operator()(Model& model, const data::Batch& batch) const {
    return {.loss = model(batch.input, at::Tensor(), batch.target),
            .logits = {},
            .labels = batch.target};
  }
};
using LmTrainer = Trainer<TransformerLm, Sentences, LmLoss>;

struct Way {
  const char* mesh;  // "": one process, DistributedDataParallel
  int ranks = 1;
  int zero = 0;
  int rows = 1;  // that have batches of their own

  std::shared_ptr<Strategy> strategy(uint64_t seed = 1) const {
    if (*mesh == 0) return make_strategy("ddp");
    Parallelism how = parse_parallelism(mesh);
    how.zero = zero;
    return make_lm_mesh_strategy(how, {.dropout_seed = seed});
  }
};

struct Logged : TrainCallback {
  std::vector<double> losses, evaluations;
  Metrics figures;  // of the first log
  void on_log(const TrainerState&, const LogEvent& event) override {
    if (losses.empty()) figures = event.figures;
    losses.push_back(event.loss);
  }
  void on_evaluation(const TrainerState&, const Evaluation& evaluation, bool,
                     TrainControl&) override {
    evaluations.push_back(evaluation.loss);
  }
};

struct Outcome {
  std::vector<double> losses, evaluations;
  TrainerState state;
  double best_loss = 0;  // of an evaluation after the end
};

void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                 const std::string& who, double tolerance = kNear) {
  ASSERT_EQ(found.size(), expected.size()) << who;
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], tolerance) << who << " " << i;
}

class LmMesh : public ::testing::Test {
 protected:
  static constexpr int64_t kBatch = 8;

  TrainingArguments arguments(const std::string& folder) const {
    return {.output_dir = dir_ / folder,
            .per_device_eval_batch_size = 3,
            .num_train_epochs = 5,
            .learning_rate = 0.02,
            .weight_decay = 0.1,
            .max_grad_norm = 0,  // clipping of float64 divides by a float32 without a mesh
            .lr_scheduler_type = "linear",
            .logging_steps = 1,
            .eval_strategy = "epoch",
            .save_strategy = "epoch",
            .load_best_model_at_end = true,
            .disable_tqdm = true};
  }

  Outcome train(const Way& way, TrainingArguments args, int64_t patience = 2) {
    const Sentences train_set(3 * kBatch), dev(7, 5);
    args.per_device_train_batch_size = kBatch / way.rows;
    Outcome outcome;
    testing::run_threads(way.ranks, [&](Communicator& comm) {
      const auto logged = std::make_shared<Logged>();
      LmTrainer trainer(
          {.model = make_lm(),
           .comm = comm,
           .args = args,
           .train_dataset = &train_set,
           .eval_dataset = &dev,
           .callbacks = {logged, std::make_shared<EarlyStoppingCallback>(args, patience)},
           .saved = {.config_json = to_json(small())},
           .strategy = way.strategy()});
      trainer.train();
      const double loss = find_metric(trainer.evaluate(), "eval_loss").value();
      trainer.save_model(dir_ / ("whole-" + std::to_string(way.ranks)));
      // Every rank has decided alike.
      const at::Tensor mine = at::tensor(
          {loss, trainer.state().best_score, static_cast<double>(trainer.state().best_step),
           static_cast<double>(trainer.state().samples)},
          at::kDouble);
      const at::Tensor all = comm.all_gather(mine.unsqueeze(0));
      EXPECT_TRUE(at::equal(all, mine.expand_as(all))) << way.mesh;
      if (comm.rank() == 0) outcome = {logged->losses, logged->evaluations, trainer.state(), loss};
    });
    return outcome;
  }

  TestDirectory dir_;
};

TEST_F(LmMesh, TheTrainerTrainsEvaluatesStopsAndKeepsTheBestAsOneProcess) {
  const Outcome one = train({""}, arguments("one"));
  ASSERT_LT(one.state.best_step, one.state.step) << "the last model is not to be the best one";
  ASSERT_LT(one.state.epoch, 5) << "it is to stop early";
  for (const Way& way : {Way{"data=2,tensor=2", 4, 0, 2}, Way{"pipe=2,data=2", 4, 1, 2},
                         Way{"context=2,data=2", 4, 2, 2}}) {
    const Outcome found = train(way, arguments(way.mesh));
    expect_near(found.losses, one.losses, way.mesh);
    expect_near(found.evaluations, one.evaluations, way.mesh);
    EXPECT_EQ(found.state.best_step, one.state.best_step) << way.mesh;
    EXPECT_EQ(found.state.step, one.state.step) << way.mesh;
    EXPECT_EQ(found.state.samples, one.state.samples) << way.mesh;
    EXPECT_NEAR(found.best_loss, one.best_loss, kNear) << way.mesh;
    EXPECT_NEAR(found.best_loss, -found.state.best_score, 1e-13) << "what was best is in place";
    EXPECT_EQ(linked_step(dir_ / way.mesh, "best"), one.state.best_step);
    // The whole model, as one process opens it: in the best state, in its type.
    TransformerLm whole = load_lm(dir_ / "whole-4");
    whole->to(at::kDouble);
    const Sentences dev(7, 5);
    const std::vector<int64_t> rows{0, 1, 2, 3, 4, 5, 6};
    const data::Batch batch = dev.batch(rows);
    whole->eval();
    EXPECT_NEAR(whole->loss(batch.input, batch.target).item<double>(), one.best_loss, 1e-6)
        << way.mesh;
  }
}

TEST_F(LmMesh, ARunOfTheTrainerGoesOnOnAnotherMesh) {
  TrainingArguments args = arguments("one");
  constexpr int64_t kAll = 100;  // evaluations: a resumed run waits anew
  args.load_best_model_at_end = false;
  const Outcome one = train({""}, args, kAll);
  args.output_dir = dir_ / "mesh";
  args.save_strategy = "steps";
  args.save_steps = 2;  // within an epoch of three
  const Outcome first = train({"pipe=2,data=2", 4, 1, 2}, args, kAll);
  expect_near(first.losses, one.losses, "pipe=2,data=2");
  const std::vector<double> rest(one.losses.begin() + 4, one.losses.end());
  args.resume_from_checkpoint = checkpoint_of_step(dir_ / "mesh", 4).string();
  for (const Way& way : {Way{"pipe=2,data=2", 4, 1, 2}, Way{"data=2,tensor=2", 4, 0, 2},
                         Way{"tensor=2,pipe=2", 4, 1, 1}, Way{"context=2", 2, 3, 1}, Way{""}}) {
    args.output_dir = dir_ / (std::string("resumed-") + way.mesh);
    const Outcome found = train(way, args, kAll);
    expect_near(found.losses, rest, std::string("resumed as ") + way.mesh);
    EXPECT_EQ(found.state.step, one.state.step);
    EXPECT_EQ(found.state.samples, one.state.samples);
  }
}

// Rows of another number of samples, of which the last evaluates fewer; metrics of one's own.
TEST_F(LmMesh, PredictionsAreEverySampleOnceOnAllRanks) {
  const Sentences dev(7, 5);
  const auto evaluate = [&](Communicator& comm, const char* mesh, const LmConfig& config) {
    int64_t tokens = 0;
    TrainingArguments args = arguments("none");
    args.per_device_eval_batch_size = 2;
    LmTrainer trainer({.model = make_lm(config),
                       .comm = comm,
                       .args = args,
                       .eval_dataset = &dev,
                       .compute_metrics = [&](const EvalPrediction& all) -> Metrics {
                         EXPECT_FALSE(all.predictions.defined());
                         EXPECT_TRUE(
                             at::equal(all.label_ids, dev.ids.narrow(1, 1, 6).reshape({-1})));
                         tokens = all.label_ids.size(0);
                         return {{"tokens", 42}};
                       },
                       .strategy = Way{mesh}.strategy()});
    const Metrics metrics = trainer.evaluate();
    EXPECT_EQ(tokens, 42);
    EXPECT_EQ(find_metric(metrics, "eval_tokens"), 42);
    EXPECT_FALSE(find_metric(metrics, "eval_accuracy"));
    const std::vector<int64_t> rows{0, 1, 2, 3, 4, 5, 6};
    const data::Batch batch = dev.batch(rows);
    EXPECT_NEAR(
        find_metric(metrics, "eval_loss").value(),
        [&] {
          TransformerLm whole = make_lm(config);
          whole->eval();
          return whole->loss(batch.input, batch.target).item<double>();
        }(),
        kNear);
  };
  testing::run_threads(6, [&](Communicator& comm) { evaluate(comm, "data=3,tensor=2", small()); });
  testing::run_threads(4, [&](Communicator& comm) { evaluate(comm, "data=2,expert=2", small(4)); });
}

// Born divided: no rank has the whole model, not even the caller's.
TEST_F(LmMesh, TheTrainerTakesAModelWithoutValues) {
  const Sentences dev(4, 5);
  const auto loss_of = [&](const char* mesh, int ranks) {
    double loss = 0;
    testing::run_threads(ranks, [&](Communicator& comm) {
      LmTrainer trainer(
          {.model = TransformerLm(small(), LmOptions{.initial = InitialParameters::kNone}),
           .comm = comm,
           .args = arguments("none"),
           .eval_dataset = &dev,
           .strategy = Way{mesh}.strategy(),
           .initial = [](const std::string& name, int64_t begin, const at::Tensor& part) {
             part.copy_(at::arange(begin, begin + part.numel(), at::kDouble)
                            .add_(static_cast<double>(name.size()))
                            .sin_()
                            .mul_(0.3));
           }});
      const double found = find_metric(trainer.evaluate(), "eval_loss").value();
      if (comm.rank() == 0) loss = found;
    });
    return loss;
  };
  EXPECT_NEAR(loss_of("tensor=2,pipe=2", 4), loss_of("", 1), 1e-6);
}

TEST_F(LmMesh, WhatCannotBeIsRefusedInOneLine) {
  const auto trainer = [&](const TrainingArguments& args, const char* mesh, at::ScalarType type) {
    return message_of<InvalidArgument>([&] {
      testing::run_threads(2, [&](Communicator& comm) {
        TransformerLm lm = make_lm();
        lm->to(type);
        LmTrainer({.model = lm, .comm = comm, .args = args, .strategy = Way{mesh}.strategy()});
      });
    });
  };
  TrainingArguments args = arguments("none");
  args.load_best_model_at_end = false;
  args.eval_strategy = "no";
  EXPECT_THAT(trainer(args, "tensor=2", at::kBFloat16),
              HasSubstr("'model.embed_tokens.weight' is neither float32 nor float64"));
  EXPECT_THAT(trainer(args, "tensor=3", at::kDouble), HasSubstr("3"));
  args.gradient_accumulation_steps = 2;
  EXPECT_THAT(trainer(args, "tensor=2", at::kDouble),
              HasSubstr("Trainer: gradient_accumulation_steps is 2"));
  args.gradient_accumulation_steps = 1;
  args.fp16 = true;
  EXPECT_THAT(trainer(args, "tensor=2", at::kDouble), HasSubstr("take bf16"));
  testing::run_threads(2, [](Communicator& comm) {
    const auto mesh = [] { return Way{"pipe=2"}.strategy(); };
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  Accelerator(comm, {.gradient_accumulation_steps = 2, .strategy = mesh()});
                }),
                HasSubstr("Accelerator: gradient_accumulation_steps is 2"));
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { Accelerator(comm, {.mixed_precision = "fp16", .strategy = mesh()}); }),
                HasSubstr("Accelerator: fp16 scales the loss"));
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { StrategyModel(torch::nn::Linear(2, 2), mesh(), comm); }),
        HasSubstr("divides a TransformerLm"));
    Accelerator accelerator(comm, {.strategy = mesh()});
    TransformerLm lm = make_lm();
    auto [model] = accelerator.prepare(lm);
    const at::Tensor ids = at::ones({2, 6}, at::kLong);
    EXPECT_THAT(message_of<InvalidArgument>([&] { model(ids); }), HasSubstr("give losses"));
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  LmCache cache(small(), 2, 8, at::kDouble);
                  lm->next(ids, cache);
                }),
                HasSubstr("put them together"));
    EXPECT_THROW((void)accelerator.clip_grad_norm(lm->parameters(), 1), InvalidArgument);
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  std::vector<torch::optim::OptimizerParamGroup> groups;
                  groups.emplace_back(std::vector<at::Tensor>{at::ones({2}).requires_grad_()});
                  accelerator.strategy().state().make_optimizer(groups, AdamWOptions(0.1));
                }),
                HasSubstr("no parameter of the model"));
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  auto groups = optim::decay_groups(*lm, torch::optim::SGDOptions(0.1));
                  accelerator.strategy().state().make_optimizer(groups, AdamWOptions(0.1));
                }),
                HasSubstr("options of group 0 are not of the algorithm's class"));
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  auto groups = optim::decay_groups(*lm, AdamWOptions(0.1));
                  groups.push_back(groups[0]);
                  accelerator.strategy().state().make_optimizer(groups, AdamWOptions(0.1));
                }),
                HasSubstr("is in two groups"));
  });
}

// A loop of one's own. `from`: go on from there; `into`: save after `steps` and end.
std::vector<double> loop(const Way& way, const fs::path& from, const fs::path& into,
                         const LmConfig& config = small(), double rate = 0.02) {
  constexpr int64_t kBatch = 8;
  std::vector<double> losses;
  testing::run_threads(way.ranks, [&](Communicator& comm) {
    const Sentences sentences(3 * kBatch);
    data::SequentialSampler sampler(sentences.size());
    data::Loader<Sentences> batches(sentences, sampler, {.batch_size = kBatch / way.rows});
    Accelerator accelerator(comm, {.strategy = way.strategy(5)});
    TransformerLm lm = make_lm(config);
    auto [model, loader] = accelerator.prepare(lm, batches);
    const auto adamw = accelerator.strategy().state().make_optimizer(
        optim::decay_groups(*lm, AdamWOptions(rate).weight_decay(0.1)), AdamWOptions(rate));
    auto [optimizer] = accelerator.prepare(*adamw);
    if (!from.empty()) accelerator.load_state(from);
    std::vector<double> mine;
    model.train();
    for (int epoch = from.empty() ? 0 : 1; epoch < 3; ++epoch) {
      for (auto& batch : loader) {
        optimizer.zero_grad();
        const at::Tensor loss =
            accelerator.backward([&] { return model(batch.input, at::Tensor(), batch.target); });
        optimizer.step();
        mine.push_back(accelerator.reduce(loss, "mean").item<double>());
        if (!into.empty() && mine.size() == 4) {
          accelerator.save_state(into, {.config_json = to_json(config)});
          accelerator.save_model(model, into.string() + "-model", {.config_json = to_json(config)});
        }
      }
    }
    // Every sample once, and every rank's the same.
    std::vector<at::Tensor> seen;
    const at::NoGradGuard no_grad;
    for (auto& batch : loader) seen.push_back(accelerator.gather_for_metrics(batch.target));
    EXPECT_TRUE(at::equal(at::cat(seen), sentences.ids.narrow(1, 1, 6))) << way.mesh;
    if (comm.rank() == 0) losses = mine;
  });
  return losses;
}

TEST_F(LmMesh, ALoopOfOnesOwnUnderTheAcceleratorIsOneProcess) {
  const std::vector<double> one = loop({""}, {}, {});
  ASSERT_EQ(one.size(), 9u);
  const std::vector<double> rest(one.begin() + 4, one.end());
  for (const Way& way : {Way{"data=2,tensor=2", 4, 0, 2}, Way{"pipe=2,data=2", 4, 1, 2},
                         Way{"context=2,data=2", 4, 0, 2}}) {
    expect_near(loop(way, {}, dir_ / way.mesh), one, way.mesh);
    EXPECT_EQ(load_lm(dir_ / (std::string(way.mesh) + "-model"))->config().hidden_size, 16);
    for (const Way& next : {way, Way{"tensor=4", 4, 1, 1}, Way{"pipe=2", 2, 0, 1}, Way{""}})
      expect_near(loop(next, dir_ / way.mesh, {}), rest,
                  std::string(way.mesh) + " to " + next.mesh);
  }
}

// A forward that has its backward in it leaves none: they are counted where they come and go.
TEST_F(LmMesh, ActivationsAreCountedWithinAStep) {
  const auto activations = [](const Way& way) {
    int64_t bytes = 0;
    testing::run_threads(way.ranks, [&](Communicator& comm) {
      Accelerator accelerator(comm, {.strategy = way.strategy()});
      TransformerLm lm = make_lm();
      auto [model] = accelerator.prepare(lm);
      const auto adamw = accelerator.strategy().state().make_optimizer(
          optim::decay_groups(*lm, AdamWOptions(0.1)), AdamWOptions(0.1));
      auto [optimizer] = accelerator.prepare(*adamw);
      const Sentences sentences(8);
      for (int step = 0; step < 2; ++step) {
        const at::Tensor ids = sentences.ids.narrow(1, 0, 6).contiguous(),
                         targets = sentences.ids.narrow(1, 1, 6).contiguous();
        optimizer.zero_grad();
        accelerator.backward([&] { return model(ids, at::Tensor(), targets); });
        optimizer.step();
      }
      if (comm.rank() == 0) bytes = accelerator.memory().activations;
    });
    return bytes;
  };
  const int64_t one = activations({"", 1});
  ASSERT_GT(one, 10'000);
  for (const Way& way : {Way{"tensor=2", 2}, Way{"pipe=2", 2}}) {
    const int64_t divided = activations(way);
    EXPECT_GT(divided, one / 8) << way.mesh;
    EXPECT_LT(divided, one) << way.mesh;
  }
}

TEST_F(LmMesh, MasksOfDropoutGoOnFromAState) {
  LmConfig config = small();
  config.hidden_dropout = 0.2;
  const Way way{"pipe=2,data=2", 4, 1, 2};
  const std::vector<double> whole = loop(way, {}, dir_ / "state", config);
  const std::vector<double> rest(whole.begin() + 4, whole.end());
  EXPECT_EQ(loop(way, dir_ / "state", {}, config), rest);
}

// A loss and its gradients are one call; a forward alone computes none.
TEST_F(LmMesh, AStepIsOneCall) {
  for (const char* mesh : {"tensor=2", "pipe=2"})
    testing::run_threads(2, [mesh](Communicator& comm) {
      TransformerLm lm = make_lm();
      StrategyModel model(lm, Way{mesh, 2, 1}.strategy(), comm);
      Strategy& strategy = model.strategy();
      const auto optimizer = strategy.state().make_optimizer(
          optim::decay_groups(*lm, AdamWOptions(0.1)), AdamWOptions(0.1));
      const Sentences sentences(4);
      const std::vector<int64_t> rows{0, 1, 2, 3};
      const data::Batch batch = sentences.batch(rows);
      const auto forward = [&] { return model(batch.input, at::Tensor(), batch.target); };
      const auto compute = [&](const auto& loss) { strategy.gradients().compute(loss); };
      const auto gradients = [&] {
        std::vector<at::Tensor> found;
        for (const auto& group : optimizer->param_groups())
          for (const at::Tensor& parameter : group.params())
            if (parameter.grad().defined()) found.push_back(parameter.grad().clone());
        return found;
      };
      EXPECT_THAT(message_of<InvalidArgument>(forward), HasSubstr("by one call"));
      EXPECT_THAT(
          message_of<InvalidArgument>([&] { compute([&] { return forward() + forward(); }); }),
          HasSubstr("one forward"));
      EXPECT_TRUE(gradients().empty()) << "of a step that failed";
      EXPECT_THAT(message_of<InvalidArgument>(
                      [&] { compute([] { return at::ones({}).requires_grad_(); }); }),
                  HasSubstr("not of the model's forward"));
      at::Tensor loss;
      compute([&] { return loss = forward(); });
      const std::vector<at::Tensor> whole = gradients();
      ASSERT_FALSE(whole.empty());
      EXPECT_THAT(message_of<InvalidArgument>([&] { compute(forward); }),
                  HasSubstr("there are gradients of a former backward"));
      optimizer->zero_grad();
      compute([&] {
        at::Tensor loss = forward();
        loss *= 0.5;
        return loss;
      });
      const std::vector<at::Tensor> half = gradients();
      ASSERT_EQ(half.size(), whole.size());
      for (size_t i = 0; i < half.size(); ++i) EXPECT_TRUE(at::equal(half[i] * 2, whole[i])) << i;
      strategy.state().step(*optimizer);
      EXPECT_TRUE(gradients().empty());
      at::Tensor after;
      compute([&] { return after = forward(); });
      EXPECT_NE(after.item<double>(), loss.item<double>());
    });
}

// As torch's load_state_dict(): the options of a state are taken over with it.
TEST_F(LmMesh, TheLearningRateOfAStateIsTakenOver) {
  const std::vector<double> one = loop({""}, {}, dir_ / "plain"), rest(one.begin() + 4, one.end());
  const Way way{"data=2,tensor=2", 4, 1, 2};
  loop(way, {}, dir_ / "mesh");
  constexpr double kOther = 0.5;
  expect_near(loop({""}, dir_ / "plain", {}, small(), kOther), rest, "one process");
  expect_near(loop(way, dir_ / "plain", {}, small(), kOther), rest, "a mesh from one process");
  expect_near(loop(way, dir_ / "mesh", {}, small(), kOther), rest, "a mesh");
}

// Groups with options of their own, a frozen parameter, one in no group, options that change on the way.
TEST_F(LmMesh, GroupsAndFrozenParametersAreTheCallers) {
  const std::string kFrozen = "model.layers.0.self_attn.q_proj.weight",
                    kLeft = "model.layers.1.mlp.down_proj.weight";
  const auto train = [&](const Way& way) {
    std::map<std::string, at::Tensor> values;
    testing::run_threads(way.ranks, [&](Communicator& comm) {
      TransformerLm lm = make_lm();
      for (auto& item : lm->named_parameters())
        if (item.key() == kFrozen) item.value().set_requires_grad(false);
      StrategyModel model(lm, way.strategy(), comm);
      Strategy& strategy = model.strategy();
      std::vector<at::Tensor> heads, others;
      for (auto& item : lm->named_parameters()) {
        if (item.key() == kLeft || item.key() == kFrozen) continue;
        (item.key().starts_with("lm_head") ? heads : others).push_back(item.value());
      }
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(heads,
                          std::make_unique<AdamWOptions>(AdamWOptions(0.1).weight_decay(0.5)));
      groups.emplace_back(others);
      const auto optimizer =
          strategy.state().make_optimizer(groups, AdamWOptions(0.01).weight_decay(0));
      const Sentences sentences(8);
      const int64_t count = 8 / way.rows,
                    first = strategy.placement().data_ranks(comm).rank() * count;
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < count; ++i) rows.push_back(first + i);
      const data::Batch batch = sentences.batch(rows);
      for (int step = 0; step < 3; ++step) {
        optimizer->zero_grad();
        strategy.gradients().compute(
            [&] { return model(batch.input, at::Tensor(), batch.target); });
        if (step == 2) optimizer->param_groups()[1].options().set_lr(0.05);
        // The norm is of what is trained: clipped so hard that another one would show.
        strategy.state().step(*optimizer,
                              {.max_norm = step == 1 ? std::optional(0.01) : std::nullopt});
      }
      NamedTensors all = strategy.traits().divides_model ? strategy.state().gathered_parameters()
                                                         : parameters_of(lm);
      if (comm.rank() != 0) return;
      for (const auto& [name, tensor] : all) values[name] = tensor.detach().clone();
    });
    return values;
  };
  const auto one = train({""});
  for (const auto& item : make_lm()->named_parameters()) {
    const bool stays = item.key() == kFrozen || item.key() == kLeft;
    EXPECT_EQ(at::equal(one.at(item.key()), item.value()), stays) << item.key();
  }
  for (const Way& way : {Way{"data=2,tensor=2", 4, 0, 2}, Way{"pipe=2,data=2", 4, 2, 2},
                         Way{"pipe=2,tensor=2", 4, 1, 1}}) {
    const auto found = train(way);
    for (const auto& [name, tensor] : one) {
      if (name == kFrozen || name == kLeft)
        EXPECT_TRUE(at::equal(found.at(name), tensor)) << way.mesh << " " << name;
      else
        // Clipping divides by a float32 without a mesh.
        EXPECT_TRUE(at::allclose(found.at(name), tensor, 0, 1e-7)) << way.mesh << " " << name;
    }
  }
}

Metrics figures_of(const TransformerLm& lm, const Strategy& strategy) {
  const auto parallel = parallel_lm_of(strategy);
  return parallel ? router_figures(parallel->routers()) : expert_figures(lm);
}

TEST_F(LmMesh, TheTrainerLogsWhatRoutersDo) {
  const Sentences sentences(8);
  const auto first = [&](const Way& way) {
    Metrics figures;
    TrainingArguments args = arguments("experts");
    args.per_device_train_batch_size = 8 / way.rows;
    args.load_best_model_at_end = false;
    args.eval_strategy = args.save_strategy = "no";
    args.num_train_epochs = 1;
    testing::run_threads(way.ranks, [&](Communicator& comm) {
      const auto logged = std::make_shared<Logged>();
      const auto strategy = way.strategy();
      LmTrainer trainer({.model = make_lm(small(4)),
                         .comm = comm,
                         .args = args,
                         .train_dataset = &sentences,
                         .callbacks = {logged},
                         .strategy = strategy,
                         .figures = [&](TransformerLm& lm) { return figures_of(lm, *strategy); }});
      trainer.train();
      if (comm.rank() == 0) figures = logged->figures;
    });
    return figures;
  };
  const Metrics one = first({""}), mesh = first({"data=2,expert=2", 4, 1, 4});
  ASSERT_EQ(one.size(), 1u + 2u * 8);
  EXPECT_EQ(one.front().first, "learning_rate");
  ASSERT_EQ(mesh.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(mesh[i].first, one[i].first);
    EXPECT_NEAR(mesh[i].second, one[i].second, 1e-12) << one[i].first;
  }
}

// What routers do on a mesh is what one process counts with the whole batch.
TEST_F(LmMesh, RoutersSayWhatTheyDid) {
  LmConfig config = small(4);
  config.router_aux_loss_by_layer = true;
  const Sentences sentences(8);
  const auto figures = [&](const Way& way, double coefficient) {
    LmConfig own = config;
    own.router_aux_loss_coef = coefficient;
    Metrics result;
    testing::run_threads(way.ranks, [&](Communicator& comm) {
      StrategyModel model(make_lm(own), way.strategy(), comm);
      const int64_t count = 8 / way.rows,
                    first = model.strategy().placement().data_ranks(comm).rank() * count;
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < count; ++i) rows.push_back(first + i);
      const data::Batch batch = sentences.batch(rows);
      model->train();
      model.strategy().gradients().compute(
          [&] { return model(batch.input, at::Tensor(), batch.target); });
      const Metrics found = figures_of(model.module(), model.strategy());
      if (comm.rank() == 0) result = found;
    });
    return result;
  };
  const Metrics one = figures({""}, 0.02);
  ASSERT_EQ(one.size(), 2u * 8);
  EXPECT_EQ(find_metric(one, "experts/1/choices"), 8 * 6 * 2);
  for (const double coefficient : {0.02, 0.0}) {
    for (const Way& way : {Way{"data=2,expert=2", 4, 1, 4}, Way{"pipe=2,expert=2", 4, 0, 2},
                           Way{"context=2,tensor=2", 4, 0, 1}}) {
      const Metrics found = figures(way, coefficient);
      ASSERT_EQ(found.size(), one.size()) << way.mesh;
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_EQ(found[i].first, one[i].first) << way.mesh;
        // Micro-batches, and ranks that do not add up, count a balance each: it is their mean.
        const bool is_balance = one[i].first.ends_with("balance");
        EXPECT_NEAR(found[i].second, one[i].second, is_balance ? 0.5 : 1e-12)
            << way.mesh << " " << one[i].first;
        if (is_balance && coefficient > 0 && std::string(way.mesh) != "pipe=2,expert=2") {
          EXPECT_NEAR(found[i].second, one[i].second, 1e-12) << way.mesh;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::inline v0::lm_mesh_strategy_test
