// SyncBatchNorm: batch normalisation over the whole batch, that is, all ranks' parts together.
// Forward, backward and running statistics are those of one process with the concatenated batch.
// The parts may differ in size; a rank may have no rows at all.
//
// An existing model is converted in place: its layers stay torch::nn::BatchNorm1d, 2d or 3d with
// their names, parameters and buffers, but in training the ranks exchange statistics.
//
//   Net net;
//   lockstep::convert_sync_batch_norm(net, comm);
//   lockstep::DistributedDataParallel model(net, comm);
//
// Method: a hook around the layer's forward (hooks/layer_hook.h), carried by its running statistics
// (or its weight, where it has none). It survives Module::to(), clone(), torch::load(),
// lockstep::load(), copy_() and zero_(). It is lost when code replaces these tensors
// (Tensor::set_data(), or an assignment to layer->running_mean); SyncBatchNormWatch, which
// DistributedDataParallel keeps, detects that. A layer with neither weights nor running statistics
// is not converted in clones.
//
// In training mode, forward and backward of each layer are one all_gather each, of about 16 bytes
// per channel: all ranks must run the same layers in the same order, and Mismatch names the layers
// where they do not. The backward of a layer whose input requires no gradient does not communicate.
// In eval mode there is no communication. A world of one rank computes plain batch normalisation.
// Second derivatives are not supported: backward with create_graph throws InvalidArgument.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>

#include <cstdint>
#include <memory>
#include <ostream>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/parallel/ddp/sync_batch_norm_watch.h"

namespace lockstep::inline v0 {

namespace internal {
struct SyncLayers;
}

// Makes every BatchNorm1d, BatchNorm2d and BatchNorm3d inside `model` (itself included) a layer
// over all ranks of `comm`, of which the layers keep a handle, and returns their number. A layer
// that was converted before gets the new communicator. Call it before DistributedDataParallel, on
// all ranks; it does not communicate.
//
// torch::nn::BatchNorm itself refuses a local batch of a single value per channel, whatever the
// other ranks have; SyncBatchNorm below accepts it.
// Throws: InvalidArgument if `model` has no such layer.
LOCKSTEP_API int64_t convert_sync_batch_norm(torch::nn::Module& model, const Communicator& comm);
// The same for a module's holder.
template <typename Holder>
  requires requires(Holder& holder) { holder->named_modules(); }
int64_t convert_sync_batch_norm(Holder& model, const Communicator& comm) {
  return convert_sync_batch_norm(*model, comm);
}

// Whether a BatchNorm layer was converted, and still is.
LOCKSTEP_API bool is_sync_batch_norm(const torch::nn::Module& layer);

// The layer for new models: inputs of [rows, channels] or [rows, channels, ...], options as those
// of torch::nn::BatchNorm. Parameters and buffers have the same names and defaults.
class LOCKSTEP_API SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Communicator comm);

  // Normalises over all ranks' rows. The result is shaped as the input.
  // Collective: in training.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  friend class SyncBatchNormWatch;
  std::shared_ptr<internal::SyncLayers> layers_;  // this one
};
TORCH_MODULE(SyncBatchNorm);

// All communication of SyncBatchNorm: sends this rank's row [k], float64, and returns all ranks'
// rows, [size, k], in rank order. k is 2 + 2 * channels in a forward and 1 + 2 * channels in a
// backward. A row of zeros adds nothing to the other ranks' statistics and gradients, so a rank
// that has run out of data can stand in for these calls.
// Collective: all ranks call it.
LOCKSTEP_API at::Tensor exchange_statistics(Communicator& comm, const at::Tensor& row);

}  // namespace lockstep::inline v0
