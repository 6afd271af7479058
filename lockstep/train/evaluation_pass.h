// evaluate_batches(): the pass over a data set that all evaluations share.
#pragma once

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <optional>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/flat/module_device.h"

namespace lockstep::inline v0 {

// Calls each(batch) for this rank's samples, in order. The model is in evaluation mode meanwhile,
// and there are no gradients; `autocast` applies if it is given. Afterwards the model has the mode
// that it had before. `ranks`: the ranks that have samples of their own.
template <typename M, data::Dataset D, typename Each>
void evaluate_batches(M& model, const D& dataset, const Communicator& ranks, int64_t batch_size,
                      const std::optional<amp::AutocastSettings>& autocast, const Each& each) {
  const at::NoGradGuard no_grad;
  const bool training = model->is_training();
  model->eval();
  data::ShardedSequentialSampler sampler(dataset.size(), ranks);
  if (sampler.size() > 0) {
    data::Loader<D> loader(dataset, sampler,
                           {.batch_size = batch_size, .device = device_of(*model)});
    for (auto& batch : loader) {
      std::optional<amp::Autocast> guard;
      if (autocast) guard.emplace(*autocast);
      each(batch);
    }
  }
  model->train(training);
}

}  // namespace lockstep::inline v0
