// Trainer: trains a model by TrainingArguments, like transformers' Trainer.
//
//   Trainer<BertClassifier, data::TokenizedTexts> trainer(
//       {.model = model, .comm = comm, .args = args, .train_dataset = &train,
//        .eval_dataset = &dev, .compute_metrics = compute_metrics});
//   trainer.train();
//   trainer.evaluate();
//
// It combines a Strategy (by default DistributedDataParallel), AdamW, a Loader and a TrainLoop. If
// it does not fit, use these directly.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/data/loader.h"
#include "lockstep/flat/module_pointer.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/supervised_task.h"
#include "lockstep/train/text_loss.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/trainer_core.h"
#include "lockstep/train/trainer_parts.h"
#include "lockstep/train/training_arguments.h"

namespace lockstep::inline v0 {

// M: a module holder. D: a data set (data/dataset.h), whose batch() is transformers' data_collator;
// data::Collated (data/collated.h) makes a data set from samples and a function. Loss: the
// compute_loss hook. It is called as loss(model, batch), with the wrapped model in training and the
// bare one in evaluation; model(...) is the model's forward. It returns LossOutput. If its loss is
// a mean over other things than samples, it tells their number (CountsTargets, text_loss.h). A
// step's gradient is that of one batch of all its samples or targets, for any division into
// micro-batches and, for targets, among ranks. The default Loss is for BertClassifier and
// TextBatch.
// Collective: every function.
// Thread-safety: one thread, the communicator's.
template <typename M, typename D, typename Loss = TextClassificationLoss>
class Trainer final : public TrainerCore {
  static_assert(ModulePointer<M>, "Trainer<M, D, Loss>: M is a module holder (TORCH_MODULE)");
  static_assert(data::Dataset<D>,
                "Trainer<M, D, Loss>: D is a data set with size() and a const "
                "batch(std::span<const int64_t> indices) (data/dataset.h)");
  static_assert(
      !data::Dataset<D> || LossFor<Loss, M, D>,
      "Trainer<M, D, Loss>: loss(model, batch) must give a LossOutput (train/text_loss.h); "
      "the default Loss is for a BertClassifier and TextBatch alone");

 public:
  // The constructor's arguments.
  struct Parts {
    // All ranks get rank 0's parameters. The model is moved to the communicator's device, like
    // batches.
    M model;
    Communicator comm;
    TrainingArguments args = {};
    // Both are referred to and must outlive the trainer. One may be missing if train() or
    // evaluate() is not called.
    const D* train_dataset = nullptr;
    const D* eval_dataset = nullptr;
    Loss compute_loss = {};
    // Returns further metrics by name; "eval_" is put before names without it. Called on every rank
    // with the same prediction.
    std::function<Metrics(const EvalPrediction&)> compute_metrics = {};
    std::vector<std::shared_ptr<TrainCallback>> callbacks = {};
    CheckpointFiles saved = {};  // further files of checkpoints
    // Null: make_strategy("ddp"). A strategy that divides the model over a mesh
    // (lm_mesh_strategy.h) has no logits: compute_loss returns the model's loss with undefined
    // LossOutput::logits, and predictions are undefined.
    std::shared_ptr<Strategy> strategy = nullptr;
    // Gives values to a model that was made without (Strategy::set_up()).
    Strategy::Initial initial = nullptr;
    // ModelOnRanks::Parts::copy_every, for ranks that are replaced under a strategy with divided
    // state.
    int64_t copy_every = 10;
    // Further figures of a log in metrics.jsonl, such as expert_figures(). Called on all ranks.
    std::function<Metrics(M&)> figures = {};
  };

  // Throws: InvalidArgument (check(args)).
  explicit Trainer(Parts parts)
      : TrainerCore({.model = parts.model.ptr(),
                     .comm = parts.comm,
                     .args = std::move(parts.args),
                     .compute_metrics = std::move(parts.compute_metrics),
                     .callbacks = std::move(parts.callbacks),
                     .saved = std::move(parts.saved),
                     .strategy = std::move(parts.strategy),
                     .initial = std::move(parts.initial),
                     .copy_every = parts.copy_every,
                     .counts_targets = kCountsTargets}),
        train_(parts.train_dataset),
        eval_(parts.eval_dataset),
        compute_loss_(std::move(parts.compute_loss)),
        figures_(std::move(parts.figures)),
        model_(std::move(parts.model), strategy()) {}

  // Predicts every sample once, on any number of ranks, also samples without a target.
  EvalPrediction predict(const D& dataset) { return predict_all(samples_of(dataset)); }

  M& model() { return model_.module(); }  // the one that is trained

 private:
  static constexpr bool kCountsTargets = CountsTargets<Loss, data::BatchOf<D>>;

  bool trains() const override { return train_ != nullptr; }
  std::optional<Samples> evaluated() override {
    return eval_ == nullptr ? std::nullopt : std::optional(samples_of(*eval_));
  }

  TrainOutput attempt() override {
    std::function<std::vector<int64_t>()> lengths;
    if constexpr (requires { train_->lengths(); }) lengths = [this] { return train_->lengths(); };
    const TrainSpec::Data now = run().dealt_anew(spec().data);
    const DealtSamples dealt = deal(now, train_->size(), *strategy(), comm(), lengths);
    data::Loader<D> loader(*train_, *dealt.sampler, loader_options(now, dealt, device()));
    SupervisedTask<M, D, Loss> task({.model = model_,
                                     .loader = loader,
                                     .loss = compute_loss_,
                                     .step = {.run = run(), .spec = spec(), .dealt = dealt},
                                     .figures = figures_});
    return train_by(task.task(evaluation()));
  }

  Samples samples_of(const D& dataset) {
    return {dataset.size(), [this, &dataset](const Communicator& ranks, PredictionSum& sum) {
              evaluate_batches(
                  model(), dataset, ranks, args().per_device_eval_batch_size, {}, [&](auto& batch) {
                    const LossOutput output = loss_under(autocast(), compute_loss_, model(), batch);
                    if constexpr (kCountsTargets)
                      sum.add(output, compute_loss_.targets(batch));
                    else
                      sum.add(output, output.labels.size(0));
                  });
            }};
  }

  const D* train_;
  const D* eval_;
  Loss compute_loss_;
  std::function<Metrics(M&)> figures_;
  StrategyModel<M> model_;
};

}  // namespace lockstep::inline v0
