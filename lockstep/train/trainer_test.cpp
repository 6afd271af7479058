#include "lockstep/train/trainer.h"
#include "lockstep/train/class_loss_test.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/report/http_get_test.h"
#include "lockstep/report/metrics_endpoint.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/normed_net.h"
#include "lockstep/train/requeue_note.h"

namespace lockstep::inline v0::trainer_test {

namespace fs = std::filesystem;
using train_test::NormedNet;

// Two classes of points in a plane.
struct Points {
  at::Tensor input, target;
  explicit Points(int64_t count) {
    input = at::linspace(-1, 1, count * 2, at::kDouble).view({2, count}).t().contiguous().sin();
    target = (input.select(1, 0) * 3 > input.select(1, 1)).to(at::kLong);
  }
  int64_t size() const { return input.size(0); }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    return {input.index_select(0, rows), target.index_select(0, rows)};
  }
};

using PointsTrainer = Trainer<torch::nn::Linear, Points, ClassLoss>;

torch::nn::Linear make_model() {
  torch::nn::Linear model(2, 2);
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  model->weight.copy_(at::tensor({0.1, -0.2, 0.3, 0.05}, at::kDouble).view({2, 2}));
  model->bias.zero_();
  return model;
}

// A folder of this test alone; thread ranks share it.
class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("lockstep-trainer-" + std::to_string(::getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  TrainingArguments arguments() const {
    return {.output_dir = folder_.string(),
            .per_device_train_batch_size = 4,
            .per_device_eval_batch_size = 3,
            .num_train_epochs = 2,
            .learning_rate = 0.1,
            .max_grad_norm = 0,
            .lr_scheduler_type = "constant",
            .save_strategy = "no",
            .disable_tqdm = true};
  }
  fs::path folder_;
};

TEST_F(TrainerTest, RanksTrainAsOneProcessOnTheWholeBatch) {
  const Points points(32);
  auto args = arguments();
  at::Tensor alone;
  testing::run_threads(1, [&](Communicator& comm) {
    auto own = args;
    own.per_device_train_batch_size = 8;
    PointsTrainer trainer(
        {.model = make_model(), .comm = comm, .args = own, .train_dataset = &points});
    EXPECT_EQ(trainer.train().global_step, 8);
    alone = trainer.model()->weight.detach().clone();
  });
  for (const int64_t accumulation : {1, 2}) {
    testing::run_threads(2, [&](Communicator& comm) {
      auto own = args;
      own.per_device_train_batch_size = 4 / accumulation;
      own.gradient_accumulation_steps = accumulation;
      PointsTrainer trainer(
          {.model = make_model(), .comm = comm, .args = own, .train_dataset = &points});
      EXPECT_EQ(trainer.train().global_step, 8);
      EXPECT_TRUE(at::allclose(trainer.model()->weight, alone, 0, 1e-12)) << accumulation;
    });
  }
}

TEST_F(TrainerTest, EvaluatesEverySampleOnceOnAnyNumberOfRanks) {
  const Points points(7);
  for (const int ranks : {1, 2, 3}) {
    testing::run_threads(ranks, [&](Communicator& comm) {
      int64_t seen = 0;
      PointsTrainer trainer({.model = make_model(),
                             .comm = comm,
                             .args = arguments(),
                             .eval_dataset = &points,
                             .compute_metrics = [&](const EvalPrediction& prediction) -> Metrics {
                               seen = prediction.label_ids.size(0);
                               EXPECT_TRUE(at::equal(prediction.label_ids, points.target));
                               return {{"answer", 42}};
                             }});
      const Metrics metrics = trainer.evaluate();
      EXPECT_EQ(seen, 7);
      const at::Tensor logits = make_model()(points.input);
      EXPECT_NEAR(find_metric(metrics, "eval_loss").value(),
                  torch::nn::functional::cross_entropy(logits, points.target).item<double>(), 1e-6);
      EXPECT_EQ(find_metric(metrics, "eval_answer"), 42);
      for (const char* name :
           {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "epoch"})
        EXPECT_TRUE(find_metric(metrics, name)) << name;
    });
  }
}

// Asks, after each step, the metrics of all ranks.
class AsksForMetrics final : public TrainCallback {
 public:
  AsksForMetrics(int64_t port, int ranks) : port_(port), ranks_(ranks) {}
  void on_step(const TrainerState& state, const StepResult&) override {
    if (state.step != 4) return;
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::string text = http_get(static_cast<uint16_t>(port_ + rank));
      if (text.find("lockstep_step{rank=\"" + std::to_string(rank) + "\"} ") != std::string::npos)
        ++found;
    }
  }
  int found = 0;

 private:
  int64_t port_;
  int ranks_;
};

TEST_F(TrainerTest, ServesMetricsOfEachRankWhileItTrains) {
  const Points points(32);
  auto args = arguments();
  while (true) {
    args.metrics_port = MetricsEndpoint(0, [] { return std::string(); }).port();
    try {
      check_metrics_ports("metrics_port", args.metrics_port, 2);
      break;
    } catch (const InvalidArgument&) {  // another port
    }
  }
  testing::run_threads(2, [&](Communicator& comm) {
    const auto asks = std::make_shared<AsksForMetrics>(args.metrics_port, comm.size());
    PointsTrainer trainer({.model = make_model(),
                           .comm = comm,
                           .args = args,
                           .train_dataset = &points,
                           .callbacks = {asks}});
    EXPECT_EQ(trainer.train().global_step, 8);
    EXPECT_EQ(asks->found, 2);
    comm.barrier();
    check_metrics_ports("metrics_port", args.metrics_port + comm.rank(), 1);  // they are free again
  });
}

TEST_F(TrainerTest, AFormerRunStays) {
  const Points points(8);
  auto args = arguments();
  args.save_strategy = "epoch";
  args.save_total_limit = 1;
  args.trace_steps = "1";
  for (int run = 0; run < 3; ++run) {
    args.num_train_epochs = run + 1;
    testing::run_threads(1, [&](Communicator& comm) {
      PointsTrainer trainer(
          {.model = make_model(), .comm = comm, .args = args, .train_dataset = &points});
      trainer.train();
    });
  }
  EXPECT_TRUE(checkpoint_exists(checkpoint_of_step(folder_, 6)));
  EXPECT_TRUE(checkpoint_exists(checkpoint_of_step(folder_ / "previous", 4)));
  EXPECT_TRUE(checkpoint_exists(checkpoint_of_step(folder_ / "previous-1", 2)));
  for (const char* name : {"metrics.jsonl", "previous/metrics.jsonl", "previous-1/metrics.jsonl",
                           "trace.json", "previous/trace.json", "previous-1/trace.json",
                           "memory.svg", "previous/memory.svg", "previous/memory_zh.svg"})
    EXPECT_TRUE(fs::exists(folder_ / name)) << name;
}

TEST_F(TrainerTest, AResumedRunEndsInTheSameBits) {
  const Points points(40);
  auto args = arguments();
  args.save_strategy = "steps";
  args.save_steps = 3;  // within an epoch of 5
  args.save_total_limit = 2;
  args.lr_scheduler_type = "linear";
  at::Tensor whole;
  testing::run_threads(2, [&](Communicator& comm) {
    PointsTrainer trainer(
        {.model = make_model(), .comm = comm, .args = args, .train_dataset = &points});
    trainer.train();
    if (comm.rank() == 0) whole = trainer.model()->weight.detach().clone();
  });
  EXPECT_EQ(checkpoint_steps(folder_), (std::vector<int64_t>{6, 9}));
  args.resume_from_checkpoint = checkpoint_of_step(folder_, 6).string();
  testing::run_threads(2, [&](Communicator& comm) {
    PointsTrainer trainer(
        {.model = make_model(), .comm = comm, .args = args, .train_dataset = &points});
    EXPECT_EQ(trainer.train().global_step, 10);
    EXPECT_TRUE(at::equal(trainer.model()->weight, whole));
  });
}

// The signal that a scheduler sends, as far as this process can tell.
class SignalAfter final : public TrainCallback {
 public:
  explicit SignalAfter(int64_t step) : step_(step) {}
  void on_step(const TrainerState& state, const StepResult&) override {
    if (state.step == step_) StopSignals::note(SIGTERM);
  }

 private:
  int64_t step_;
};

TEST_F(TrainerTest, ASignalSavesAndTheResumedRunEndsInTheSameBits) {
  const Points points(40);
  auto args = arguments();
  args.save_strategy = "epoch";
  const auto train = [&](std::vector<std::shared_ptr<TrainCallback>> callbacks) {
    std::pair<TrainOutput, at::Tensor> result;
    testing::run_threads(2, [&](Communicator& comm) {
      PointsTrainer trainer({.model = make_model(),
                             .comm = comm,
                             .args = args,
                             .train_dataset = &points,
                             .callbacks = callbacks});
      const TrainOutput output = trainer.train();
      if (comm.rank() == 0) result = {output, trainer.model()->weight.detach().clone()};
    });
    return result;
  };
  const auto [done, whole] = train({});
  EXPECT_EQ(done.global_step, 10);
  EXPECT_EQ(done.stopped_by, 0);
  EXPECT_FALSE(read_requeue_note(folder_));

  const auto signal = std::make_shared<SignalAfter>(3);
  const TrainOutput stopped = train({signal}).first;
  EXPECT_EQ(stopped.stopped_by, SIGTERM);
  EXPECT_GE(stopped.global_step, 3);
  EXPECT_LT(stopped.global_step, 10);
  const RequeueNote note{SIGTERM, stopped.global_step, folder_ / "last"};
  EXPECT_EQ(read_requeue_note(folder_), note);
  EXPECT_EQ(checkpoint_steps(folder_).back(), stopped.global_step);

  args.resume_from_checkpoint = "true";
  const auto [resumed, weight] = train({});
  EXPECT_EQ(resumed.global_step, 10);
  EXPECT_EQ(resumed.stopped_by, 0);
  EXPECT_TRUE(at::equal(weight, whole));
  EXPECT_FALSE(read_requeue_note(folder_));

  args.resume_from_checkpoint.clear();
  args.save_strategy = "no";
  EXPECT_EQ(train({signal}).first.stopped_by, SIGTERM);
  EXPECT_FALSE(read_requeue_note(folder_)) << "there is nothing to go on from";
  args.stop_on_signals = false;
  EXPECT_EQ(train({signal}).first.global_step, 10) << "nobody listens";
}

TEST_F(TrainerTest, WhatIsMeasuredIsWhatIsSavedWhereStatisticsDiffer) {
  const Points points(32), dev(11);
  auto args = arguments();
  args.per_device_eval_batch_size = 1;  // every forward is of one shape, on any number of ranks
  args.eval_strategy = "epoch";
  args.save_strategy = "epoch";
  args.max_steps = 3;
  using NormedTrainer = Trainer<NormedNet, Points, ClassLoss>;
  for (const char* strategy : {"ddp", "average", "zero1", "zero3"}) {
    args.output_dir = (folder_ / strategy).string();
    std::vector<at::Tensor> measured;  // by evaluations within training, and the last after it
    testing::run_threads(2, [&](Communicator& comm) {
      NormedTrainer trainer({.model = NormedNet(make_model()),
                             .comm = comm,
                             .args = args,
                             .train_dataset = &points,
                             .eval_dataset = &dev,
                             .compute_metrics = [&](const EvalPrediction& prediction) -> Metrics {
                               if (comm.rank() == 0) measured.push_back(prediction.predictions);
                               return {{"accuracy", count_classes(prediction).accuracy}};
                             },
                             .strategy = make_strategy(strategy)});
      trainer.train();
      // Whoever looks by hand finds that training has moved them apart.
      const at::Tensor all = comm.all_gather(trainer.model()->norm->running_mean.view({1, 2}));
      EXPECT_TRUE(all[0].equal(all[1])) << "after a save they are rank 0's";
      trainer.evaluate();
      trainer.save_model(folder_ / "alone");
    });
    ASSERT_EQ(measured.size(), 2u);
    NormedNet saved(make_model());
    set_module_state(*saved, read_checkpoint(fs::path(args.output_dir) / "last").model.tensors, "");
    saved->eval();
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> rows;
    for (int64_t i = 0; i < dev.size(); ++i) rows.push_back(saved(dev.input.narrow(0, i, 1)));
    for (const at::Tensor& each : measured)
      EXPECT_TRUE(each.equal(at::cat(rows).to(at::kFloat))) << strategy;
    NormedNet alone(make_model());
    set_module_state(*alone, read_checkpoint(folder_ / "alone").model.tensors, "");
    EXPECT_TRUE(alone->norm->running_var.equal(saved->norm->running_var)) << strategy;
    fs::remove_all(folder_ / "alone");
  }
}

// state() in callbacks is what they are told, and in compute_metrics what on_evaluation() is.
class StateSeen final : public TrainCallback {
 public:
  explicit StateSeen(std::function<TrainerState()> seen) : seen_(std::move(seen)) {}
  void on_step(const TrainerState& state, const StepResult&) override { compare(state); }
  void on_log(const TrainerState& state, const LogEvent&) override { compare(state); }
  void on_epoch(const TrainerState& state, const EpochEvent&) override { compare(state); }
  void on_save(TrainerState& state, bool) override { compare(state); }
  void on_evaluation(const TrainerState& state, const Evaluation&, bool, TrainControl&) override {
    compare(state);
  }
  int calls = 0;

 private:
  void compare(const TrainerState& told) {
    EXPECT_EQ(seen_(), told) << "step " << told.step;
    ++calls;
  }
  std::function<TrainerState()> seen_;
};

TEST_F(TrainerTest, CallbacksFindTheStateThatTheyAreToldOf) {
  const Points points(32), dev(11);
  auto args = arguments();
  args.logging_steps = 2;
  args.eval_strategy = "epoch";
  args.save_strategy = "epoch";
  testing::run_threads(2, [&](Communicator& comm) {
    PointsTrainer* trainer = nullptr;
    const auto seen = std::make_shared<StateSeen>([&] { return trainer->state(); });
    std::vector<int64_t> evaluated;
    PointsTrainer made({.model = make_model(),
                        .comm = comm,
                        .args = args,
                        .train_dataset = &points,
                        .eval_dataset = &dev,
                        .compute_metrics = [&](const EvalPrediction&) -> Metrics {
                          evaluated.push_back(trainer->state().step);
                          return {};
                        },
                        .callbacks = {seen}});
    trainer = &made;
    const TrainOutput output = made.train();
    EXPECT_EQ(output.global_step, 8);
    EXPECT_EQ(evaluated, (std::vector<int64_t>{4, 8}));
    EXPECT_EQ(seen->calls, 8 + 4 + 2 + 2 + 2);
    EXPECT_EQ(made.state().step, 8);
    EXPECT_EQ(made.state().epoch, 2);
  });
}

// Starts another trainer into the same folder in the midst of the first one's training.
class Intruder final : public TrainCallback {
 public:
  explicit Intruder(std::function<void()> intrude) : intrude_(std::move(intrude)) {}
  void on_step(const TrainerState& state, const StepResult&) override {
    if (state.step == 2) intrude_();
  }

 private:
  std::function<void()> intrude_;
};

TEST_F(TrainerTest, ASecondJobInTheSameFolderIsRefusedAndTheFirstGoesOn) {
  const Points points(16);
  auto args = arguments();
  args.save_strategy = "steps";
  args.save_steps = 1;
  const auto train = [&](const std::vector<std::shared_ptr<TrainCallback>>& callbacks) {
    int64_t steps = 0;
    testing::run_threads(1, [&](Communicator& comm) {
      PointsTrainer trainer({.model = make_model(),
                             .comm = comm,
                             .args = args,
                             .train_dataset = &points,
                             .callbacks = callbacks});
      steps = trainer.train().global_step;
    });
    return steps;
  };
  std::string refusal;
  const auto intruder = std::make_shared<Intruder>([&] {
    std::thread([&] {
      testing::run_threads(1, [&](Communicator& comm) {
        PointsTrainer trainer(
            {.model = make_model(), .comm = comm, .args = args, .train_dataset = &points});
        refusal = message_of<InvalidArgument>([&] { trainer.train(); });
      });
    }).join();
  });
  EXPECT_EQ(train({intruder}), 8);
  EXPECT_NE(refusal.find("in use"), std::string::npos) << refusal;
  EXPECT_TRUE(checkpoint_exists(folder_ / "last"));
  EXPECT_FALSE(fs::exists(folder_ / "previous")) << "the first one's run was moved away";
  EXPECT_EQ(train({}), 8) << "it is free afterwards";
}

// As where another process of the job went on with it, which this one learns of before it writes.
TEST_F(TrainerTest, ARunThatHasLostItsFolderEndsWithoutWritingThere) {
  const Points points(16);
  auto args = arguments();
  args.save_strategy = "steps";
  args.save_steps = 3;
  testing::run_threads(2, [&](Communicator& comm) {
    PointsTrainer trainer({.model = make_model(),
                           .comm = comm,
                           .args = args,
                           .train_dataset = &points,
                           .callbacks = {std::make_shared<Intruder>([&] {
                             if (comm.rank() == 0) fs::remove(folder_ / ".lock");
                           })}});
    EXPECT_NE(
        message_of<CheckpointError>([&] { trainer.train(); }).find("no longer this process's"),
        std::string::npos);
  });
  EXPECT_FALSE(fs::exists(folder_ / "last"));
}

// Whatever wrote it, and however many.
TEST_F(TrainerTest, OtherRanksUnderAnotherStrategyGoOn) {
  constexpr int64_t kBatch = 24;
  const Points points(5 * kBatch);
  auto args = arguments();
  args.save_strategy = "steps";
  args.save_steps = 3;  // within an epoch of 5
  args.lr_scheduler_type = "linear";
  const auto train = [&](int ranks, const char* strategy) {
    const bool logical = std::string_view(strategy) == "logical8";
    args.per_device_train_batch_size = kBatch / (logical ? 8 : ranks);
    at::Tensor weight;
    testing::run_threads(ranks, [&](Communicator& comm) {
      torch::nn::Linear model(2, 40);  // enough for every rank to have a part of the state
      model->to(at::kDouble);
      {
        const at::NoGradGuard no_grad;
        model->weight.copy_(at::linspace(-1, 1, 80, at::kDouble).view({40, 2}));
        model->bias.zero_();
      }
      PointsTrainer trainer({.model = model,
                             .comm = comm,
                             .args = args,
                             .train_dataset = &points,
                             .strategy = make_strategy(strategy)});
      EXPECT_EQ(trainer.train().global_step, 10);
      if (comm.rank() == 0) weight = trainer.model()->weight.detach().clone();
    });
    return weight;
  };
  for (const auto& [before, way] :
       {std::pair(4, "zero3"), {4, "ddp"}, {3, "zero1"}, {2, "logical8"}}) {
    args.resume_from_checkpoint.clear();
    args.async_save = before == 4;
    args.output_dir = (folder_ / (std::string(way) + "-whole")).string();
    const at::Tensor whole = train(before, way);
    const fs::path from = checkpoint_of_step(args.output_dir, 6);
    EXPECT_EQ(fs::exists(from / "optimizer.safetensors.index.json"), way[0] == 'z');
    args.resume_from_checkpoint = from.string();
    for (const auto& [after, other] :
         {std::pair(1, "ddp"), {2, "zero2"}, {3, "zero3"}, {8, "zero1"}, {4, "logical8"}}) {
      args.output_dir = (folder_ / "resumed").string();
      fs::remove_all(args.output_dir);
      EXPECT_TRUE(at::allclose(train(after, other), whole, 0, 1e-10))
          << before << " " << way << " to " << after << " " << other;
    }
  }
}

TEST_F(TrainerTest, LogicalRanksEndInTheSameBitsOnAnyNumber) {
  const Points points(125);  // five steps of 8 batches of 3, and a rest
  auto args = arguments();
  args.per_device_train_batch_size = 3;
  args.save_strategy = "steps";
  args.save_steps = 3;
  args.lr_scheduler_type = "linear";
  args.max_grad_norm = 0.1;
  const auto train = [&](int ranks) {
    args.output_dir = (folder_ / std::to_string(ranks)).string();
    at::Tensor weight;
    testing::run_threads(ranks, [&](Communicator& comm) {
      PointsTrainer trainer({.model = make_model(),
                             .comm = comm,
                             .args = args,
                             .train_dataset = &points,
                             .strategy = make_strategy("logical8")});
      EXPECT_EQ(trainer.train().global_step, 10);
      if (comm.rank() == 0) weight = trainer.model()->weight.detach().clone();
    });
    return weight;
  };
  const at::Tensor one = train(1);
  for (const int ranks : {2, 4, 8}) EXPECT_TRUE(train(ranks).equal(one)) << ranks;
  const fs::path saved = folder_ / "4";
  args.resume_from_checkpoint = checkpoint_of_step(saved, 6).string();
  for (const int ranks : {1, 2, 8}) EXPECT_TRUE(train(ranks).equal(one)) << "resumed on " << ranks;
  testing::run_threads(3, [&](Communicator& comm) {
    EXPECT_THROW(PointsTrainer({.model = make_model(),
                                .comm = comm,
                                .args = args,
                                .train_dataset = &points,
                                .strategy = make_strategy("logical8")}),
                 InvalidArgument);
  });
}

TEST_F(TrainerTest, AnotherBatchIsNotResumed) {
  const Points points(40);
  auto args = arguments();
  args.save_strategy = "epoch";
  const auto train = [&](Communicator& comm) {
    PointsTrainer trainer(
        {.model = make_model(), .comm = comm, .args = args, .train_dataset = &points});
    trainer.train();
  };
  testing::run_threads(2, train);
  args.resume_from_checkpoint = checkpoint_of_step(folder_, 5).string();
  testing::run_threads(1, [&](Communicator& comm) {
    std::string message;
    try {
      train(comm);
    } catch (const CheckpointError& error) {
      message = error.what();
    }
    EXPECT_NE(message.find("is of epochs of 5 steps, and these have 10; resume with the same data, "
                           "and with batch size times ranks as it was"),
              std::string::npos)
        << message;
  });
}

TEST_F(TrainerTest, StopsEarlyAndLoadsTheBestModel) {
  const Points points(16);
  auto args = arguments();
  args.num_train_epochs = 20;
  args.eval_strategy = args.save_strategy = "epoch";
  args.load_best_model_at_end = true;
  args.metric_for_best_model = "score";
  args.greater_is_better = true;
  testing::run_threads(2, [&](Communicator& comm) {
    int evaluations = 0;
    at::Tensor best;
    PointsTrainer* running = nullptr;
    PointsTrainer trainer({.model = make_model(),
                           .comm = comm,
                           .args = args,
                           .train_dataset = &points,
                           .eval_dataset = &points,
                           .compute_metrics = [&](const EvalPrediction&) -> Metrics {
                             const std::vector<double> scores{1, 3, 2, 2.5, 9};
                             if (evaluations == 1) best = running->model()->weight.detach().clone();
                             return {{"score", scores.at(static_cast<size_t>(evaluations++))}};
                           },
                           .callbacks = {std::make_shared<EarlyStoppingCallback>(args, 2)}});
    running = &trainer;
    trainer.train();
    EXPECT_EQ(evaluations, 4);
    EXPECT_EQ(trainer.state().best_score, 3);
    EXPECT_TRUE(at::equal(trainer.model()->weight, best));
  });
}

TEST_F(TrainerTest, ClipsGradients) {
  const Points points(8);
  auto args = arguments();
  args.max_steps = 1;
  args.max_grad_norm = 1e-3;
  testing::run_threads(1, [&](Communicator& comm) {
    PointsTrainer trainer(
        {.model = make_model(), .comm = comm, .args = args, .train_dataset = &points});
    trainer.train();
    double squares = 0;
    for (const auto& parameter : trainer.model()->parameters())
      squares += parameter.grad().square().sum().item<double>();
    EXPECT_NEAR(std::sqrt(squares), 1e-3, 1e-8);
  });
}

struct SlowLoss : ClassLoss {
  template <typename Model>
  LossOutput operator()(Model& model, const data::Batch& batch) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return ClassLoss::operator()(model, batch);
  }
};

TEST_F(TrainerTest, SaysWhereTheTimeOfAStepGoes) {
  struct Collect : TrainCallback {
    std::vector<StepTimes> times;
    void on_step(const TrainerState&, const StepResult& result) override {
      times.push_back(result.times);
    }
  };
  const Points points(16);
  testing::run_threads(2, [&](Communicator& comm) {
    const auto collect = std::make_shared<Collect>();
    Trainer<torch::nn::Linear, Points, SlowLoss> trainer({.model = make_model(),
                                                          .comm = comm,
                                                          .args = arguments(),
                                                          .train_dataset = &points,
                                                          .callbacks = {collect}});
    const auto start = std::chrono::steady_clock::now();
    trainer.train();
    const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - start;
    ASSERT_EQ(collect->times.size(), 4U);
    double sum = 0;
    for (const StepTimes& times : collect->times) {
      EXPECT_GE(times.forward, 0.005);
      for (const double part :
           {times.data, times.forward, times.backward, times.waiting, times.optimizer}) {
        EXPECT_GE(part, 0);
        sum += part;
      }
      EXPECT_GT(times.optimizer, 0);
    }
    EXPECT_LE(sum, whole.count());
  });
}

TEST(TrainingArguments, RefuseWhatMakesNoSense) {
  const auto refused = [](const std::string& json) -> std::string {
    try {
      training_arguments_from_json(json, "args.json");
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_EQ(refused(R"({"learning_rat": 1})"),
            "args.json: unknown key 'learning_rat'; did you mean 'learning_rate'?");
  EXPECT_EQ(refused(R"({"bf16": true, "fp16": true})"),
            "args.json: bf16 and fp16 are both on; choose one");
  EXPECT_EQ(refused(R"({"warmup_ratio": 1.5})"), "args.json: warmup_ratio is 1.5; give 0 to 1");
  EXPECT_NE(refused(R"({"load_best_model_at_end": true})").find("eval_strategy is 'no'"),
            std::string::npos);
  EXPECT_NE(refused(R"({"eval_strategy": "steps", "eval_steps": 40, "save_steps": 50,
                        "load_best_model_at_end": true})")
                .find("must be a multiple of eval_steps, 40"),
            std::string::npos);
  EXPECT_NE(refused("[]").find("give a JSON object"), std::string::npos);
  EXPECT_EQ(refused("{}"), "taken");
}

TEST(TrainingArguments, GoThroughJson) {
  TrainingArguments args;
  args.eval_steps = 7;
  args.greater_is_better = false;
  args.learning_rate = 3e-5;
  EXPECT_EQ(training_arguments_from_json(to_json(args), "x"), args);
}

TEST(Metrics, PrintAsPythonsDictionaries) {
  EXPECT_EQ(
      to_text({{"eval_loss", 1.1885839700698853},
               {"eval_accuracy", 0.5525},
               {"rate", 5e-4},
               {"epoch", 1}}),
      "{'eval_loss': 1.1885839700698853, 'eval_accuracy': 0.5525, 'rate': 0.0005, 'epoch': 1.0}");
}

}  // namespace lockstep::inline v0::trainer_test
