// Strategy: how the ranks' gradients are averaged.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/parallel/ddp/average_gradients.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/horovod/distributed_gradients.h"

namespace lockstep {

enum class Strategy {
  kDdp,        // DistributedDataParallel: buckets, averaged while backward runs
  kAverage,    // average_gradients after backward, as tutorial 000 does it
  kRing,       // the same by the chunked ring over isend and irecv
  kNaiveRing,  // the same by the tutorial's ring
  kHorovod,    // DistributedGradients: as they come, in an order that the ranks agree on
};

// "ddp", "average", "ring", "naive-ring", "horovod"; "naive_ring" is taken too. Throws
// InvalidArgument with the list of names.
Strategy parse_strategy(std::string_view name);
const std::vector<std::string>& strategy_names();
AverageOptions average_options(Strategy strategy);

// A model whose gradients are averaged by a strategy. Construction is collective: rank 0's
// parameters and buffers go to all. M is a module holder. Afterwards, on every rank: forward(...),
// loss.backward(), average().
template <typename M>
class AveragedModel {
 public:
  AveragedModel(M model, Communicator comm, Strategy strategy)
      : model_(std::move(model)), comm_(std::move(comm)), strategy_(strategy) {
    if (strategy_ == Strategy::kDdp) {
      ddp_.emplace(model_, comm_);
      return;
    }
    NamedTensors everything = parameters_of(model_);
    const NamedTensors buffers = to_named_tensors(model_->named_buffers());
    everything.insert(everything.end(), buffers.begin(), buffers.end());
    check_same_on_all_ranks(comm_, everything);
    broadcast_tensors(comm_, everything);
    if (strategy_ == Strategy::kHorovod) horovod_.emplace(parameters_of(model_), comm_);
  }

  M& module() { return model_; }

  template <typename... Args>
  auto forward(Args&&... args) {
    return ddp_ ? (*ddp_)(std::forward<Args>(args)...)
                : model_->forward(std::forward<Args>(args)...);
  }
  // See DistributedDataParallel::follow(); nothing with another strategy.
  template <typename Loader>
  void follow(const Loader& loader) {
    if (ddp_) ddp_->follow(loader);
  }
  // After backward: every rank's gradients are the average over the ranks. Collective.
  void average() {
    if (horovod_)
      horovod_->synchronize();
    else if (!ddp_)
      average_gradients(model_, comm_, average_options(strategy_));
  }

 private:
  M model_;
  Communicator comm_;
  Strategy strategy_;
  std::optional<DistributedDataParallel<M>> ddp_;
  std::optional<DistributedGradients> horovod_;
};

}  // namespace lockstep
