// evaluate_batches(): a model over the samples of a data set, as every evaluation goes over them.
#pragma once

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <optional>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/flat/module_device.h"

namespace lockstep {

// Calls each(batch) for this rank's samples, in order, in evaluation mode, without gradients and
// under `autocast` where it is given; afterwards the model is in the mode in which it was found.
// `ranks`: those that have samples of their own.
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

}  // namespace lockstep
