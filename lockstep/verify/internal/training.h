// The optimizers and shares that both trainings of an equality use.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/verify/equality.h"

namespace lockstep::inline v0::internal {

constexpr double kMaxNorm = 0.7;
constexpr int64_t kSequences = 8;

inline torch::optim::AdamWOptions adamw() {
  return torch::optim::AdamWOptions(2e-3).weight_decay(0.1);
}
inline torch::optim::SGDOptions sgd() {
  return torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(0.01);
}

// Biases and norms do not decay.
template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const NamedTensors& parameters,
                                                         const Options& options) {
  std::vector<at::Tensor> decayed, others;
  for (const auto& [name, tensor] : parameters)
    (tensor.dim() > 1 ? decayed : others).push_back(tensor);
  const Options none = Options(options).weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, std::make_unique<Options>(options));
  groups.emplace_back(others, std::make_unique<Options>(none));
  return std::make_unique<Optimizer>(groups, none);
}

inline std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const NamedTensors& parameters,
                                                                const EqualityOptions& options) {
  if (options.adam) return torch_optimizer<torch::optim::AdamW>(parameters, adamw());
  return torch_optimizer<torch::optim::SGD>(parameters, sgd());
}

inline optim::Algorithm algorithm_of(const EqualityOptions& options) {
  if (options.adam) return adamw();
  return sgd();
}

// The sequences of a batch that this rank's row has.
// Throws: InvalidArgument where rows cannot have equally many.
struct Share {
  int64_t first = 0, count = 0;
};
Share share_of(const Communicator& rows);
// The mean over the rows.
double mean_over(Communicator& rows, double value);
void keep(EqualityRun& run, const NamedTensors& parameters);

}  // namespace lockstep::inline v0::internal
