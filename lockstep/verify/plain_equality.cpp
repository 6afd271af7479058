#include "lockstep/verify/plain_equality.h"

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/comm/thread_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/model/plain_models.h"
#include "lockstep/plan/pipeline_schedule.h"
#include "lockstep/products/parallel_model.h"
#include "lockstep/verify/internal/training.h"

namespace lockstep::inline v0 {
namespace {

using namespace internal;

constexpr int64_t kBlocks = 5, kTokens = 16;

std::vector<TensorRule> rules_of(PlainModel model) {
  std::vector<TensorRule> rules{{"layers.*.attention.query", TensorStyle::kHeads, plain::kHeads},
                                {"layers.*.attention.key", TensorStyle::kHeads, plain::kHeads},
                                {"layers.*.attention.value", TensorStyle::kHeads, plain::kHeads},
                                {"layers.*.attention.mix", TensorStyle::kRow},
                                {"layers.*.up", TensorStyle::kColumn},
                                {"layers.*.down", TensorStyle::kRow}};
  if (model == PlainModel::kVision) {
    rules.push_back({"layers.0.norm", TensorStyle::kRowsBegin});
  } else {
    rules.push_back({"layers.0.words", TensorStyle::kVocabulary});
    rules.push_back({"layers.0.positions", TensorStyle::kPositions});
  }
  if (model == PlainModel::kDecoder) {
    rules.push_back({"layers.*.norm", TensorStyle::kRows});
    rules.push_back({"layers.*.head", TensorStyle::kVocabulary});
  } else {
    rules.push_back({"layers." + std::to_string(kBlocks) + ".norm2", TensorStyle::kRowsEnd});
  }
  rules.push_back({"layers.*.norm1", TensorStyle::kRows});
  rules.push_back({"layers.*.norm2", TensorStyle::kRows});
  return rules;
}

// As for the language models, nothing is drawn.
template <typename M>
M with_values(M model, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  model->to(dtype);
  double begin = 1;
  for (auto& [name, parameter] : parameters_of(model)) {
    const at::Tensor values = torch::arange(parameter.numel(), at::kDouble)
                                  .mul_(1.7)
                                  .add_(begin += 13)
                                  .sin_()
                                  .mul_(0.1)
                                  .view(parameter.sizes());
    const bool is_scale = name.find("norm") != std::string::npos && name.ends_with("weight");
    parameter.copy_(is_scale ? values + 1 : values);
  }
  return model;
}

struct PlainBatch {
  at::Tensor inputs, targets;
};
PlainBatch batch_of(PlainModel model, int64_t step, at::ScalarType dtype) {
  const at::Tensor ids = (torch::arange(kSequences * kTokens, at::kLong) * 17 + step * 11)
                             .pow(2)
                             .remainder(plain::kWords)
                             .view({kSequences, kTokens});
  const at::Tensor classes = ids.roll(-1, 1).select(1, 0).contiguous();
  if (model == PlainModel::kEncoder) return {ids, classes};
  if (model == PlainModel::kVision)
    return {torch::arange(kSequences * 3 * 16 * kTokens, at::kDouble)
                .mul_(0.7)
                .add_(step)
                .sin_()
                .view({kSequences, 3, 16, kTokens})
                .to(dtype),
            classes};
  const at::Tensor targets = ids.roll(-1, 1);
  for (int64_t i = 0; i < kSequences; ++i) targets[i][(i + step) % kTokens] = -100;
  return {ids, targets};
}

at::Tensor loss_of(const at::Tensor& outputs, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(outputs.reshape({-1, plain::kWords}),
                                              targets.reshape({-1}));
}

template <typename M>
EqualityRun whole(M model, PlainModel kind, const EqualityOptions& options) {
  const auto optimizer = torch_optimizer(parameters_of(model), options);
  EqualityRun run;
  const auto loss_at = [&](int64_t step) {
    const PlainBatch batch = batch_of(kind, step, options.dtype);
    return loss_of(model->forward(batch.inputs), batch.targets);
  };
  for (int64_t step = 0; step < options.steps; ++step) {
    optimizer->zero_grad();
    const at::Tensor loss = loss_at(step);
    loss.backward();
    run.norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), kMaxNorm));
    optimizer->step();
    run.losses.push_back(loss.template item<double>());
  }
  model->eval();
  run.evaluated = loss_at(options.steps).template item<double>();
  keep(run, parameters_of(model));
  return run;
}

template <typename M>
EqualityRun divided(M module, PlainModel kind, Communicator& comm, const Parallelism& how,
                    const EqualityOptions& options) {
  const PlainBatch example = batch_of(kind, 0, options.dtype);
  ParallelModel model(
      module, comm, how, {.modules = rules_of(kind), .units = "layers"},
      {.loss = loss_of,
       .count = [](const at::Tensor& targets) { return targets.ne(-100).sum().item<double>(); },
       .inputs = example.inputs,
       .targets = example.targets});
  model.divided().make_optimizer(algorithm_of(options));
  Communicator rows = model.rows();
  const Share share = share_of(rows);
  const auto own = [&](int64_t step) {
    const PlainBatch all = batch_of(kind, step, options.dtype);
    return PlainBatch{all.inputs.narrow(0, share.first, share.count),
                      all.targets.narrow(0, share.first, share.count)};
  };
  EqualityRun run;
  for (int64_t step = 0; step < options.steps; ++step) {
    const PlainBatch batch = own(step);
    run.losses.push_back(mean_over(rows, model.step(batch.inputs, batch.targets)));
    run.norms.push_back(*model.divided().update({.max_norm = kMaxNorm}).grad_norm);
  }
  const PlainBatch batch = own(options.steps);
  run.evaluated = mean_over(rows, model.evaluate(batch.inputs, batch.targets));
  keep(run, model.divided().gather());
  return run;
}

template <typename Work>
auto with_model(PlainModel kind, at::ScalarType dtype, const Work& work) {
  switch (kind) {
    case PlainModel::kDecoder:
      return work(with_values(plain::Gpt(false, -1, kBlocks), dtype));
    case PlainModel::kEncoder:
      return work(with_values(plain::Encoder(kBlocks), dtype));
    case PlainModel::kVision:
      break;
  }
  return work(with_values(plain::Vision(kBlocks, kTokens), dtype));
}

}  // namespace

void check(PlainModel, const Parallelism& given, int ranks) {
  check_ways(given);
  Parallelism how = given;
  how.axes = with_all_axes(given.axes, ranks);
  if (const int parts = how.size_of("tensor"); plain::kHeads % parts != 0)
    throw InvalidArgument("parallelism: " + std::to_string(plain::kHeads) +
                          " heads do not divide among " + std::to_string(parts) +
                          " ranks along tensor; give a divisor");
  if (const int context = how.size_of("context"); kTokens % (2 * context) != 0)
    throw InvalidArgument("parallelism: " + std::to_string(kTokens) +
                          " tokens do not divide among " + std::to_string(context) +
                          " ranks along context; give a divisor of " + std::to_string(kTokens / 2));
  const int stages = how.size_of("pipe");
  const auto schedule = make_schedule(
      how.schedule,
      {.stages = stages, .micro_batches = how.micro_batches > 0 ? how.micro_batches : 2 * stages});
  if (stages > 1 && schedule.all_chunks() > kBlocks + 2)
    throw InvalidArgument("parallelism: a pipeline of " + std::to_string(schedule.all_chunks()) +
                          " chunks, and the model has " + std::to_string(kBlocks + 2) +
                          " units; give fewer stages along pipe");
  if (how.size_of("expert") > 1)
    throw InvalidArgument("parallelism: expert is " + std::to_string(how.size_of("expert")) +
                          ", and the model has no experts; put these ranks along data");
}

EqualityRun train_whole(PlainModel kind, const EqualityOptions& options) {
  return with_model(kind, options.dtype, [&](auto model) { return whole(model, kind, options); });
}

EqualityRun train_divided(PlainModel kind, const Parallelism& how, int ranks,
                          const EqualityOptions& options) {
  EqualityRun run;
  std::mutex mutex;
  run_ranks_as_threads(ranks, [&](Communicator& comm) {
    at::set_num_threads(1);
    EqualityRun mine = with_model(
        kind, options.dtype, [&](auto model) { return divided(model, kind, comm, how, options); });
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) run = std::move(mine);
  });
  return run;
}

}  // namespace lockstep::inline v0
