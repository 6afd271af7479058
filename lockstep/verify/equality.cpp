#include "lockstep/verify/equality.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>

#include "lockstep/comm/thread_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/products/parallel_lm.h"
#include "lockstep/verify/internal/training.h"

namespace lockstep::inline v0 {
namespace {

using namespace internal;

constexpr int64_t kLength = 12;

ParameterParts values_of(const LmConfig& config) {
  std::map<std::string, double> starts;
  double at = 1;
  for (const auto& [name, shape] : lm_parameter_shapes(config)) starts[name] = at += 13;
  return [starts](const std::string& name, int64_t begin, const at::Tensor& part) {
    const at::Tensor values = at::arange(begin, begin + part.numel(), at::kDouble)
                                  .mul_(1.7)
                                  .add_(starts.at(name))
                                  .sin_()
                                  .mul_(0.1);
    part.copy_(name.find("norm") != std::string::npos ? values + 1 : values);
  };
}

// The rows of a mesh have their shares in order, with as many targets each.
struct Batch {
  at::Tensor ids, targets;
};
Batch batch_of(const LmConfig& config, int64_t step) {
  const at::Tensor ids = (at::arange(kSequences * kLength, at::kLong) * 17 + step * 11)
                             .pow(2)
                             .remainder(config.vocab_size)
                             .view({kSequences, kLength});
  const at::Tensor targets = ids.roll(-1, 1);
  for (int64_t i = 0; i < kSequences; ++i) targets[i][(i + step) % kLength] = -100;
  return {ids, targets};
}

// A value that is not a number equals nothing.
double difference(double a, double b) {
  const double relative = std::abs(a - b) / std::max(std::abs(b), 1e-30);
  return std::isnan(relative) ? INFINITY : relative;
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, difference(a[i], b[i]));
  return most;
}

}  // namespace

namespace internal {

Share share_of(const Communicator& rows) {
  if (kSequences % rows.size() != 0)
    throw InvalidArgument("verify: " + std::to_string(kSequences) +
                          " sequences do not divide among " + std::to_string(rows.size()) +
                          " ranks along data and expert; give 1, 2, 4 or 8");
  const int64_t count = kSequences / rows.size();
  return {rows.rank() * count, count};
}

double mean_over(Communicator& rows, double value) {
  const at::Tensor sum = at::full({1}, value, at::kDouble);
  rows.all_reduce(sum);
  return sum.item<double>() / rows.size();
}

void keep(EqualityRun& run, const NamedTensors& parameters) {
  for (const auto& [name, tensor] : parameters) run.parameters[name] = tensor.detach().clone();
}

}  // namespace internal

EqualityRun train_whole(const LmConfig& config, const EqualityOptions& options) {
  TransformerLm lm(config, LmOptions{.initial = InitialParameters::kNone});
  const ParameterParts values = values_of(config);
  for (const auto& [name, tensor] : parameters_of(lm)) values(name, 0, tensor.detach().view({-1}));
  lm->to(options.dtype);
  const auto optimizer = torch_optimizer(parameters_of(lm), options);
  EqualityRun run;
  for (int64_t step = 0; step < options.steps; ++step) {
    const auto [ids, targets] = batch_of(config, step);
    optimizer->zero_grad();
    // The routers' losses are left out, because ParallelLm does not count them either.
    const double entropy = lm->scores(ids, targets).losses.sum().item<double>() /
                           static_cast<double>(targets.ne(-100).sum().item<int64_t>());
    lm->loss(ids, targets).backward();
    run.norms.push_back(torch::nn::utils::clip_grad_norm_(lm->parameters(), kMaxNorm));
    optimizer->step();
    run.losses.push_back(entropy);
  }
  const auto [ids, targets] = batch_of(config, options.steps);
  lm->eval();
  run.evaluated = lm->loss(ids, targets).item<double>();
  keep(run, parameters_of(lm));
  return run;
}

EqualityRun train_divided(const LmConfig& config, const Parallelism& how, int ranks,
                          const EqualityOptions& options) {
  EqualityRun run;
  std::mutex mutex;
  run_ranks_as_threads(ranks, [&](Communicator& comm) {
    at::set_num_threads(1);
    ParallelLm model(config, comm, how, {.values = values_of(config), .dtype = options.dtype});
    model.make_optimizer(algorithm_of(options));
    Communicator rows = model.rows();
    const auto row_of = [&](int64_t step) {
      const auto [ids, targets] = batch_of(config, step);
      const Share share = share_of(rows);
      return LmRowBatch{ids.narrow(0, share.first, share.count),
                        targets.narrow(0, share.first, share.count)};
    };
    EqualityRun mine;
    for (int64_t step = 0; step < options.steps; ++step) {
      mine.losses.push_back(mean_over(rows, model.step(row_of(step))));
      mine.norms.push_back(*model.update({.max_norm = kMaxNorm}).grad_norm);
    }
    mine.evaluated = mean_over(rows, model.evaluate(row_of(options.steps)));
    keep(mine, model.gather());
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) run = std::move(mine);
  });
  return run;
}

double EqualityResult::most() const {
  return std::max({losses, norms, evaluated, parameters});
}

EqualityResult compare(const EqualityRun& run, const EqualityRun& expected) {
  EqualityResult result;
  result.losses = difference(run.losses, expected.losses);
  result.norms = difference(run.norms, expected.norms);
  result.evaluated = difference(run.evaluated, expected.evaluated);
  for (const auto& [name, value] : expected.parameters) {
    const auto found = run.parameters.find(name);
    double most = INFINITY;
    if (found != run.parameters.end() && found->second.sizes() == value.sizes())
      most = (found->second - value).abs().max().item<double>() /
             std::max(value.abs().max().item<double>(), 1e-30);
    if (std::isnan(most)) most = INFINITY;
    if (most >= result.parameters) {
      result.parameters = most;
      result.worst = name;
    }
  }
  if (run.parameters.size() != expected.parameters.size()) result.parameters = INFINITY;
  return result;
}

bool same_bits(const EqualityRun& a, const EqualityRun& b) {
  if (a.losses != b.losses || a.norms != b.norms || a.evaluated != b.evaluated ||
      a.parameters.size() != b.parameters.size())
    return false;
  return std::all_of(a.parameters.begin(), a.parameters.end(), [&](const auto& item) {
    const auto found = b.parameters.find(item.first);
    return found != b.parameters.end() && item.second.equal(found->second);
  });
}

}  // namespace lockstep::inline v0
