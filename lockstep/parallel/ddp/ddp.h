// DistributedDataParallel: a model on every rank, each trained on its part of the data, kept the
// same by averaging gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/ddp/same_on_all_ranks.h"
#include "lockstep/parallel/ddp/sync_batch_norm_watch.h"

namespace lockstep {

struct DdpOptions {
  flat::BucketSizes bucket_sizes = {};  // bytes: the first bucket, the others
  bool broadcast_buffers = true;  // rank 0's buffers (BatchNorm's statistics) to all, before each
                                  // forward in training mode whose backward communicates
  int64_t check_every = 0;  // at every so-manieth forward in training (with gradients enabled) the
                            // ranks' parameters are compared, by 8 bytes, and Mismatch names the
                            // first that has drifted apart; 0: never
  std::shared_ptr<CommHook> hook = nullptr;  // averages the buckets; this wrapper's alone
  Unused unused = Unused::kLeave;            // parameters that no rank used
};

// Wraps any module: M is a ModuleHolder (made by TORCH_MODULE) or a std::shared_ptr to a module,
// with any forward().
//
// Construction is collective: all ranks' models must agree in names, shapes and dtypes (Mismatch
// otherwise, naming the first difference); then rank 0's parameters and buffers are copied to all.
//
// Afterwards every backward() through the model's parameters is collective: it ends with every rank
// holding the average of the ranks' gradients (reducer.h), which are views into flat buckets.
// zero_grad() may be called before or after forward, setting to none or not. Forwards without a
// backward are free, but in training with gradients enabled they count: all ranks must make equally
// many between two backwards (Mismatch otherwise: a rank has skipped a step). All ranks must call
// backward equally often.
//
// The module is shared, not copied: module() and operator-> give it, so that optimizers and
// checkpoints see plain parameters. Not copyable; movable. One thread at a time. Backward throws
// what the communicator throws; the gradients are then unspecified.
template <typename M>
class DistributedDataParallel {
 public:
  explicit DistributedDataParallel(M module, Communicator comm, DdpOptions options = {})
      : module_(std::move(module)), comm_(std::move(comm)), options_(std::move(options)) {
    NamedTensors parameters = named(module_->named_parameters());
    NamedTensors everything = parameters;
    buffers_ = named(module_->named_buffers());
    everything.insert(everything.end(), buffers_.begin(), buffers_.end());
    check_same_on_all_ranks(comm_, everything);
    broadcast_tensors(comm_, everything);
    parameters_ = parameters;
    sync_batch_norms_ = SyncBatchNormWatch(*module_);
    std::erase_if(parameters, [](const auto& entry) { return !entry.second.requires_grad(); });
    reducer_ = std::make_unique<Reducer>(std::move(parameters), comm_, options_.bucket_sizes,
                                         options_.hook, options_.unused);
  }

  // The module's forward().
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }
  template <typename... Args>
  auto forward(Args&&... args) {
    sync_batch_norms_.check();
    reducer_->before_forward(module_->is_training());
    if (options_.check_every > 0 && module_->is_training() && at::GradMode::is_enabled() &&
        ++forwards_ % options_.check_every == 0)
      check_equal_values(comm_, parameters_);
    if (options_.broadcast_buffers && module_->is_training() && !buffers_.empty() &&
        reducer_->communicates())
      broadcast_tensors(comm_, buffers_);
    auto output = module_->forward(std::forward<Args>(args)...);
    watch(output);
    return output;
  }

  // The wrapped module, for state dicts and checkpoints.
  M& module() { return module_; }
  const M& module() const { return module_; }
  auto operator->() { return &*module_; }
  auto operator->() const { return &*module_; }

  // While the guard lives, backward() does not communicate: gradients add up on this rank, and the
  // first backward after it averages all of them. All ranks must do so in the same backwards.
  //
  //   {
  //     const auto guard = model.no_sync();
  //     loss(model(first)).backward();
  //   }
  //   loss(model(second)).backward();  // averages both
  NoSync no_sync() { return NoSync(*reducer_); }
  // The same by counting: of every `steps` backwards only the last communicates. The gradients are
  // the sum over the steps (and the average over the ranks): divide the loss by `steps` for their
  // mean. A parameter that was used in an early one only is averaged too. The count starts anew
  // here: accumulate(rest) makes a shorter last group of an epoch. Throws InvalidArgument unless
  // steps is 1 or more. The same on all ranks.
  void accumulate(int64_t steps) { reducer_->accumulate(steps); }
  // Whether the next backward communicates, and the optimizer is to take a step after it.
  bool communicates() const { return reducer_->communicates(); }

  Communicator& comm() { return comm_; }
  size_t bucket_count() const { return reducer_->bucket_count(); }

 private:
  template <typename Dict>
  static NamedTensors named(const Dict& dict) {
    NamedTensors result;
    for (const auto& item : dict) result.emplace_back(item.key(), item.value());
    return result;
  }

  void watch(const at::Tensor& output) { reducer_->watch(output); }
  void watch(const std::vector<at::Tensor>& outputs) {
    for (const at::Tensor& output : outputs) reducer_->watch(output);
  }
  template <typename... Ts>
  void watch(const std::tuple<Ts...>& outputs) {
    std::apply([this](const auto&... output) { (watch(output), ...); }, outputs);
  }
  template <typename T>
  void watch(const T&) {
  }  // an output of another kind: the parameters' own hooks suffice, but for nested backwards

  M module_;
  Communicator comm_;
  DdpOptions options_;
  NamedTensors parameters_;
  NamedTensors buffers_;
  SyncBatchNormWatch sync_batch_norms_;
  int64_t forwards_ = 0;  // in training
  std::unique_ptr<Reducer> reducer_;
};

template <typename M>
DistributedDataParallel(M, Communicator) -> DistributedDataParallel<M>;
template <typename M>
DistributedDataParallel(M, Communicator, DdpOptions) -> DistributedDataParallel<M>;

}  // namespace lockstep
