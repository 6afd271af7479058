// Trainer: training a model from TrainingArguments, as transformers' Trainer does it.
//
//   Trainer<BertClassifier, data::TokenizedTexts> trainer(
//       {.model = model, .comm = comm, .args = args, .train_dataset = &train,
//        .eval_dataset = &dev, .compute_metrics = compute_metrics});
//   trainer.train();
//   trainer.evaluate();
//
// It is a Strategy (DistributedDataParallel unless another is given), AdamW, a Loader and a TrainLoop
// put together; where it does not fit, take these.
#pragma once

#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/errors.h"
#include "lockstep/data/length_grouped_sampler.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/flat/module_device.h"
#include "lockstep/flat/module_pointer.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/optim/learning_rate.h"
#include "lockstep/train/checkpointing.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/replica_check.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/step_batches.h"
#include "lockstep/train/step_clock.h"
#include "lockstep/train/straggler.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/text_loss.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/trainer_parts.h"
#include "lockstep/train/training_arguments.h"

namespace lockstep {

// M: a module holder. D: a data set (data/dataset.h); its batch() is transformers' data_collator;
// data::Collated (data/collated.h) makes one of samples and a function. Loss: the compute_loss
// hook, called as loss(model, batch) with the wrapped model in training and the bare one in
// evaluation, where model(...) is the model's forward; gives LossOutput, and where its loss is a mean over
// other things than samples says of how many (CountsTargets, text_loss.h). A step's gradient is that of one
// batch of all its samples or targets, however they lie in micro-batches and, targets, on ranks. The default
// is for BertClassifier and TextBatch. One thread, the communicator's; every call is collective.
template <typename M, typename D, typename Loss = TextClassificationLoss>
class Trainer {
  static_assert(ModulePointer<M>, "Trainer<M, D, Loss>: M is a module holder (TORCH_MODULE)");
  static_assert(data::Dataset<D>,
                "Trainer<M, D, Loss>: D is a data set with size() and a const "
                "batch(std::span<const int64_t> indices) (data/dataset.h)");
  static_assert(
      !data::Dataset<D> || LossFor<Loss, M, D>,
      "Trainer<M, D, Loss>: loss(model, batch) must give a LossOutput (train/text_loss.h); "
      "the default Loss is for a BertClassifier and TextBatch alone");

 public:
  struct Parts {
    M model;  // rank 0's parameters go to all; it is moved to the communicator's device, as batches are
    Communicator comm;
    TrainingArguments args = {};
    // Both are referred to, must outlive the trainer, and may be missing where train() or
    // evaluate() is not called.
    const D* train_dataset = nullptr;
    const D* eval_dataset = nullptr;
    Loss compute_loss = {};
    // Further metrics by name; "eval_" is put before those that lack it. Called on every rank with
    // the same.
    std::function<Metrics(const EvalPrediction&)> compute_metrics = {};
    std::vector<std::shared_ptr<TrainCallback>> callbacks = {};
    CheckpointFiles saved = {};  // what else belongs into checkpoints
    // make_strategy("ddp"). One that divides the model over a mesh (lm_mesh_strategy.h) has no logits: compute_loss
    // gives the model's loss (LossOutput::logits undefined), and predictions are undefined.
    std::shared_ptr<Strategy> strategy = nullptr;
    // The model was made without values, and gets them from it (Strategy::set_up_undrawn()).
    Strategy::Initial initial = nullptr;
    // Where ranks are replaced and the strategy divides the state: ModelOnRanks::Parts::copy_every.
    int64_t copy_every = 10;
    // What a log says in metrics.jsonl beside the loss, such as expert_figures(); as TrainTask::figures, on all ranks.
    std::function<Metrics(M&)> figures = {};
  };

  // Throws InvalidArgument (check(args)).
  explicit Trainer(Parts parts)
      : parts_(checked(std::move(parts))),
        data_ranks_(parts_.strategy->data_ranks(parts_.comm)),
        run_({.model = parts_.model.ptr(),
              .strategy = parts_.strategy,
              .comm = parts_.comm,
              .groups =
                  [this] { return optim::decay_groups(*parts_.model, adam_options(parts_.args)); },
              .algorithm = adam_options(parts_.args),
              .initial = std::exchange(parts_.initial, nullptr),
              .float16 = parts_.args.fp16,
              .copy_every = parts_.copy_every}),
        model_(parts_.model, parts_.strategy),
        judges_(model_.strategy().evaluation_ranks(run_.comm())) {}
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains from the start, or from args.resume_from_checkpoint, to the end, and leaves the best
  // model in place if args say so. A job that its launcher has started again goes on from its last
  // checkpoint by itself; where ranks that die are replaced (`lockstep run --on-failure replace`, and a
  // strategy that rebinds() or has_shares()) the others go on in place, and no step is lost
  // (recover/recovery.h).
  // SIGTERM or SIGUSR1 to any rank ends it sooner, saved (TrainOutput::stopped_by).
  // While it runs, output_dir is this job's alone (run_claim.h).
  // Throws InvalidArgument without a training set, and where output_dir is in use or cannot be written; where ranks are
  // replaced, for a second call too.
  TrainOutput train() {
    // Whatever ends it, the folder is others' afterwards.
    struct Release {
      ModelOnRanks& run;
      ~Release() { run.release(); }
    } const release{run_};
    if (parts_.train_dataset == nullptr)
      throw InvalidArgument("Trainer: there is no train_dataset");
    if (run_.recovers() && trained_)
      throw InvalidArgument(
          "Trainer: where ranks are replaced, train() is called once: a new rank cannot know which "
          "of several calls the others are in");
    // Also while ranks that are left meet again.
    std::optional<StopSignals> signals;
    if (parts_.args.stop_on_signals) signals.emplace();
    const TrainOutput output = run_.attempts([&] { return train_once(); });
    trained_ = true;
    tell_of_stop(run_.comm(), parts_.args, output);
    if (parts_.args.load_best_model_at_end && output.stopped_by == 0)
      load_best_model(run_.comm(), *parts_.model, model_.strategy(), parts_.args);
    return output;
  }

  // The model alone, whole, as a directory that transformers, eval and load_lm() open, with parts' saved.config_json
  // and files. Where ranks divide the model, rank 0 takes all of it into its memory.
  void save_model(const std::filesystem::path& path) {
    check_trained();
    lockstep::save_model(run_.comm(), *parts_.model, model_.strategy(), parts_.saved, path);
  }

  // eval_loss, compute_metrics' (without it, eval_accuracy, where there are logits), eval_runtime,
  // eval_samples_per_second, eval_steps_per_second, epoch. Throws InvalidArgument without an
  // evaluation set. Rank 0 prints them.
  Metrics evaluate() {
    check_trained();
    Metrics metrics = evaluate_now().metrics;
    print_metrics(run_.comm(), metrics);
    return metrics;
  }

  // Every sample once, on any number of ranks; also of samples without a target.
  EvalPrediction predict(const D& dataset) {
    check_trained();
    return forward_all(dataset).prediction;
  }

  M& model() { return parts_.model; }
  const TrainerState& state() const { return state_; }
  torch::optim::Optimizer& optimizer() { return run_.optimizer(); }
  // After train(), for what stands on it: others than at first where ranks were replaced.
  Communicator& comm() { return run_.comm(); }

 private:
  struct Run {
    data::Sampler& sampler;
    data::Loader<D>& loader;
    std::function<double(int64_t)> rates;
    std::optional<typename data::Loader<D>::Iterator> batches = {};
    int64_t step = 0;       // of the run
    int64_t left = 0;       // batches of this epoch
    bool at_first = false;  // the iterator stands at a batch not yet used
  };
  struct Forwarded {
    EvalPrediction prediction;
    bool has_loss = false;
    double loss = 0;  // mean over samples or targets; 0 where there are none
    int64_t batches = 0;
    double seconds = 0;
  };

  static Parts checked(Parts parts) {
    check(parts.args);
    if (!parts.strategy) parts.strategy = make_strategy("ddp");
    check_has_replicas(*parts.strategy, parts.args.check_replicas);
    check_eviction(parts.args.evict_stragglers, process_env());
    check_divided(*parts.strategy, "Trainer", parts.args.gradient_accumulation_steps,
                  parts.args.fp16);
    if (parts.strategy->logical_ranks() > 0 &&
        (parts.args.gradient_accumulation_steps > 1 || parts.args.group_by_length))
      throw InvalidArgument("Trainer: strategy " + parts.strategy->name() +
                            " deals its batches itself; leave gradient_accumulation_steps and "
                            "group_by_length as they are");
    return parts;
  }

  std::unique_ptr<data::Sampler> make_sampler() {
    const TrainingArguments& args = parts_.args;
    const D& dataset = *parts_.train_dataset;
    if (args.group_by_length) {
      if constexpr (requires { dataset.lengths(); }) {
        return std::make_unique<data::LengthGroupedSampler>(
            dataset.lengths(), data_ranks_,
            data::LengthGroupedSamplerOptions{
                .batch_size = args.per_device_train_batch_size * data_ranks_.size(),
                .seed = args.seed});
      } else {
        throw InvalidArgument("group_by_length: the data set has no lengths()");
      }
    }
    return lockstep::make_sampler(*parts_.strategy, run_.comm(), dataset.size(),
                                  args.per_device_train_batch_size, args.seed);
  }

  // From the beginning, or where the run stood when a rank died.
  TrainOutput train_once() {
    const TrainingArguments& args = parts_.args;
    Strategy& strategy = model_.strategy();
    claim_output(run_, args);
    if (run_.recovers()) {
      data_ranks_ = strategy.data_ranks(run_.comm());
      judges_ = strategy.evaluation_ranks(run_.comm());
    }
    batches_per_step_ = batches_per_step(strategy, run_.comm());
    const auto sampler = make_sampler();
    data::Loader<D> loader(*parts_.train_dataset, *sampler,
                           {.batch_size = args.per_device_train_batch_size,
                            .num_workers = static_cast<int>(args.dataloader_num_workers),
                            .drop_last = args.dataloader_drop_last,
                            .device = device_of(*parts_.model)});
    strategy.follow(loader.batches_taken());
    steps_ = training_steps(args, loader.batches() / batches_per_step_);
    const auto rates = learning_rates(args, steps_.all);
    Run run{.sampler = *sampler, .loader = loader, .rates = rates};
    TrainLoop loop(run_.comm(), task(run), loop_options(args, steps_));
    const TrainingRun saved{.comm = run_.comm(),
                            .model = *parts_.model,
                            .strategy = strategy,
                            .optimizer = run_.optimizer(),
                            .trainer = loop,
                            .scaler = run_.scaler(),
                            .files = parts_.saved,
                            .before_save = [this] { run_.check_claim(); }};
    RunStart start = RunStart::kInPlace;
    if (!run_.goes_on()) {
      const auto from = resumed_checkpoint(run_.comm(), args);
      if (from) restore_training(saved, *from);
      start = from ? RunStart::kResumed : run_.has_room() ? RunStart::kAgain : RunStart::kAnew;
    }
    add_callbacks(loop, saved, start);
    run_.has_made_room();
    TrainOutput output = run_to_end(loop);
    state_ = loop.state();
    return output;
  }

  void check_trained() const {
    if (!run_.recovers() || trained_) return;
    throw InvalidArgument(
        "Trainer: where ranks are replaced, train() comes before evaluate(), predict() and "
        "save_model(): a new rank cannot know which of them the others are in");
  }

  TrainTask task(Run& run) {
    TrainTask task{.steps_per_epoch = steps_.per_epoch,
                   .begin_epoch = [this, &run](int64_t epoch,
                                               int64_t first) { begin_epoch(run, epoch, first); },
                   .step = [this, &run] { return step(run); }};
    if (parts_.eval_dataset != nullptr) task.evaluate = [this] { return evaluate_in_training(); };
    task.figures = [this, &run](int64_t step) {
      Metrics figures = update_figures(model_.strategy(), run.rates(step - 1));
      if (!parts_.figures) return figures;
      const Metrics more = parts_.figures(parts_.model);
      figures.insert(figures.end(), more.begin(), more.end());
      return figures;
    };
    return task;
  }

  void begin_epoch(Run& run, int64_t epoch, int64_t first_step) {
    run.batches.reset();
    run.sampler.set_epoch(epoch);
    const int64_t skipped =
        first_step * parts_.args.gradient_accumulation_steps * batches_per_step_;
    run.loader.skip(skipped);
    run.batches.emplace(run.loader.begin());
    run.at_first = true;
    run.left = run.loader.batches() - skipped;
    run.step = epoch * steps_.per_epoch + first_step;
    parts_.model->train();
  }

  StepResult step(Run& run) {
    // Of logical ranks' batches the strategy takes the mean; others are added up.
    const bool logical = parts_.strategy->logical_ranks() > 0;
    const int64_t group =
        std::min(logical ? batches_per_step_ : parts_.args.gradient_accumulation_steps, run.left);
    StepResult result;
    RunningLoss sum;
    Strategy& strategy = model_.strategy();
    StepClock clock(strategy, !std::exchange(counted_, true));
    run_.optimizer().zero_grad();
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < group; ++i)
      samples.push_back(run.loader.samples(run.loader.batches() - run.left + i));
    const auto next = [&]() -> data::BatchOf<D>& {
      clock.data([&] {
        if (!std::exchange(run.at_first, false)) ++*run.batches;
      });
      --run.left;
      return **run.batches;
    };
    StepBatches<data::BatchOf<D>, Loss, decltype(next)> batches(
        parts_.compute_loss, next, std::move(samples), data_ranks_, logical ? group : 1);
    while (batches.next()) {
      std::optional<Accumulation> held;
      if (!logical && !batches.last()) held.emplace(model_.shared_strategy());
      const LossOutput output =
          clock.forward([&] { return compute_loss(model_, batches.batch()); });
      clock.backward([&] {
        const at::Tensor loss = batches.weighed(output);
        strategy.backward(run_.scaler() ? run_.scaler()->scale(loss) : loss);
      });
      sum.add(DeviceScalar(output.loss), batches.counted());
      // Ranks that work on one batch count it once.
      if (strategy.counts_batches()) result.samples += output.labels.size(0);
    }
    result.loss = sum.mean();
    if constexpr (CountsTargets<Loss, data::BatchOf<D>>)
      result.targets = strategy.counts_batches() ? static_cast<int64_t>(sum.samples) : 0;
    optim::set_learning_rate(run_.optimizer(), run.rates(run.step++));
    clock.optimizer([&] {
      StrategyStep options{.scaler = run_.scaler(), .reads_norm_later = true};
      if (parts_.args.max_grad_norm > 0) options.max_norm = parts_.args.max_grad_norm;
      run_.step(result, options);
    });
    result.times = clock.times();
    result.activations = clock.activations();
    return result;
  }

  template <typename Model, typename Batch>
  LossOutput compute_loss(Model& model, const Batch& batch) {
    std::optional<amp::Autocast> autocast;
    if (parts_.args.bf16 || parts_.args.fp16)
      autocast.emplace(run_.comm().device().type(), parts_.args.bf16 ? at::kBFloat16 : at::kHalf);
    return parts_.compute_loss(model, batch);
  }

  Forwarded forward_all(const D& dataset) {
    const auto start = std::chrono::steady_clock::now();
    const at::NoGradGuard no_grad;
    const auto whole = model_.strategy().as_saved();
    const bool training = parts_.model->is_training();
    parts_.model->eval();
    PredictionSum sum;
    data::ShardedSequentialSampler sampler(dataset.size(), judges_);
    if (sampler.size() > 0) {
      data::Loader<D> loader(dataset, sampler,
                             {.batch_size = parts_.args.per_device_eval_batch_size,
                              .device = device_of(*parts_.model)});
      for (auto& batch : loader) {
        const LossOutput output = compute_loss(parts_.model, batch);
        if constexpr (CountsTargets<Loss, data::BatchOf<D>>)
          sum.add(output, parts_.compute_loss.targets(batch));
        else
          sum.add(output, output.labels.size(0));
      }
    }
    parts_.model->train(training);
    Forwarded result;
    result.prediction = gather_predictions(judges_, sum.rows());
    const std::optional<double> loss = sum.mean_loss(judges_);
    result.has_loss = loss.has_value();
    result.loss = loss.value_or(0);
    // Ranks that have evaluated the same together may differ by rounding, and all must decide alike.
    if (model_.strategy().divides_model()) make_same(run_.comm(), result.prediction, result.loss);
    result.batches = (sampler.size() + parts_.args.per_device_eval_batch_size - 1) /
                     parts_.args.per_device_eval_batch_size;
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
  }

  Evaluation evaluate_now() {
    if (parts_.eval_dataset == nullptr) throw InvalidArgument("Trainer: there is no eval_dataset");
    const Forwarded all = forward_all(*parts_.eval_dataset);
    if (CountsTargets<Loss, data::BatchOf<D>> && !all.has_loss)
      throw InvalidArgument(
          "Trainer: by compute_loss.targets() the data set to evaluate on has no target at all, so "
          "there is no loss of it; give one that has some");
    Evaluation evaluation = count_if_classes(all.prediction);
    evaluation.loss = all.loss;
    evaluation.metrics = {{"eval_loss", all.loss}};
    if (parts_.compute_metrics)
      add_metrics(evaluation.metrics, parts_.compute_metrics(all.prediction));
    else if (all.prediction.predictions.defined())
      evaluation.metrics.emplace_back("eval_accuracy", evaluation.accuracy);
    add_rates(evaluation.metrics, all.seconds, all.prediction.label_ids.size(0), all.batches);
    evaluation.metrics.emplace_back("epoch", epochs_done());
    return evaluation;
  }

  Evaluation evaluate_in_training() {
    if (loop_ != nullptr) state_ = loop_->state();
    return evaluate_now();
  }

  double epochs_done() const {
    if (steps_.per_epoch == 0) return static_cast<double>(state_.epoch);
    return static_cast<double>(state_.step) / static_cast<double>(steps_.per_epoch);
  }

  void add_callbacks(TrainLoop& loop, const TrainingRun& saved, RunStart start) {
    if (const auto check = replica_check(run_.comm(), *parts_.model, model_.strategy(),
                                         parts_.args.check_replicas))
      loop.add(check);
    add_standard_callbacks(loop, run_.comm(), parts_.args, steps_, model_.strategy(),
                           run_.optimizer(), start);
    for (const auto& callback : parts_.callbacks) loop.add(callback);
    if (parts_.args.save_strategy != "no")
      loop.add(std::make_shared<CheckpointCallback>(
          saved, parts_.args.output_dir, parts_.args.save_total_limit, parts_.args.async_save));
  }

  TrainOutput run_to_end(TrainLoop& loop) {
    loop_ = &loop;
    struct Reset {
      TrainLoop*& loop;
      ~Reset() { loop = nullptr; }
    } reset{loop_};
    return run_training(run_, loop, steps_);
  }

  Parts parts_;
  bool counted_ = false;          // a forward's memory
  Communicator data_ranks_;       // that have data of their own
  int64_t batches_per_step_ = 1;  // of this rank, before accumulation
  ModelOnRanks run_;
  StrategyModel<M> model_;
  Communicator judges_;  // that evaluate samples of their own
  TrainingSteps steps_;
  TrainerState state_;
  TrainLoop* loop_ = nullptr;  // while train() runs
  bool trained_ = false;
};

}  // namespace lockstep
