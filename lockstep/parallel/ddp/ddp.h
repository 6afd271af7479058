// DistributedDataParallel: a model on every rank, each trained on its part of the data, kept equal
// by averaging gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/module_pointer.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/nested.h"
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/ddp/join.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/ddp/replica.h"
#include "lockstep/parallel/ddp/sync_batch_norm_watch.h"

namespace lockstep::inline v0 {

// Wraps any model with any forward(). M is
// - a ModuleHolder (made by TORCH_MODULE) or a std::shared_ptr to a module,
// - a torch::jit::Module: TorchScript, from a file of Python or made here; operator() also takes
//   plain tensors and returns the c10::IValue of its forward(),
// - a TensorModel (flat/tensor_model.h): a list of named tensors and a function.
//
// Construction compares the ranks' models in names, shapes and dtypes (Mismatch that names the
// first difference) and then copies rank 0's parameters and buffers to all, unless
// DdpOptions::init_sync says that they are equal already. It makes a group of its own of the
// communicator's ranks. A model without a parameter that requires a gradient is InvalidArgument:
// was register_module() forgotten?
// Collective: all ranks construct it.
//
// Afterwards every backward() through the model's parameters is collective: when it ends, every
// rank has the average of the ranks' gradients (reducer.h), which are views into flat buckets.
// zero_grad() may be called before or after forward, setting to none or not. Forwards without a
// backward are allowed, but forwards in training with gradients enabled count: all ranks must make
// the same number of them between two backwards (Mismatch otherwise: a rank has skipped a step).
// All ranks must call backward equally often.
//
// The module is shared, not copied: module() and operator-> return it, so that optimizers and
// checkpoints see plain parameters. Parameters may be frozen, and unfrozen again, afterwards. If
// one is added, replaced, unfrozen for the first time, or converted to another type or device, the
// next forward with gradients enabled throws InvalidArgument that names it: do that before, or wrap
// the module again. Not copyable; movable.
// Thread-safety: one thread at a time.
// Throws: backward throws the communicator's errors; the gradients are then unspecified.
template <typename M>
class DistributedDataParallel {
  static_assert(WrappedModel<M>,
                "DistributedDataParallel wraps a module: give its holder (TORCH_MODULE) or a "
                "std::shared_ptr to it, a torch::jit::Module or a TensorModel, then the "
                "communicator");

 public:
  explicit DistributedDataParallel(M module, Communicator comm, DdpOptions options = {})
      : module_(std::move(module)),
        replica_(std::make_shared<internal::Replica>(
            parameters_of(module_), kind_of(module_), buffers_of(module_),
            watch_sync_batch_norms(module_in(module_)), std::move(comm), std::move(options))) {}
  DistributedDataParallel(DistributedDataParallel&&) noexcept = default;
  DistributedDataParallel& operator=(DistributedDataParallel&&) noexcept = default;

  // The module's forward().
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }
  template <typename... Args>
  auto forward(Args&&... args) {
    return forward_by(flat::rows_of(args...), [&] {
      return flat::forward_of(module_in(module_), std::forward<Args>(args)...);
    });
  }
  // The same where other code calls the module's forward, of `rows` samples: `compute` does so and
  // returns its output.
  template <typename Compute>
  auto forward_by(int64_t rows, const Compute& compute) {
    const double weight = replica_->before_forward(module_, rows);
    auto output = compute();
    if (weight != 1) weigh(output, weight);
    watch(output);
    return output;
  }

  // The wrapped module, for state dicts and checkpoints.
  M& module() { return module_; }
  const M& module() const { return module_; }
  auto operator->() { return std::addressof(module_in(module_)); }
  auto operator->() const { return std::addressof(module_in(module_)); }

  // While the guard lives, backward() does not communicate: gradients add up on this rank, and the
  // first backward after it averages all of them. All ranks must use it in the same backwards.
  //
  //   {
  //     const auto guard = model.no_sync();
  //     loss(model(first)).backward();
  //   }
  //   loss(model(second)).backward();  // averages both
  NoSync no_sync() { return NoSync(reducer()); }
  // The same by counting: of every `steps` backwards only the last communicates. The gradients are
  // the sum over the steps (and the average over the ranks): divide the loss by `steps` for their
  // mean or, where the batches are of unequal size, multiply it by its share of all samples. A
  // parameter that was used only in an earlier one is averaged too. The count starts anew here:
  // accumulate(rest) makes a shorter last group of an epoch. The same on all ranks.
  // Throws: InvalidArgument unless steps is 1 or more.
  void accumulate(int64_t steps) { reducer().accumulate(steps); }
  // Whether the next backward communicates, so that the optimizer must take a step after it.
  bool communicates() const { return reducer().communicates(); }

  // For ranks with unequal numbers of batches: see join.h. Called on all ranks.
  // Throws: InvalidArgument if the last one was not finished.
  Join join() { return Join(replica_); }

  // Detects a rank that has skipped a whole step: from now on each bucket's call carries the number
  // of batches taken from `loader` (batches_taken(), a function that counts them), and ranks that
  // average different batches get Mismatch. Without it, a rank that skips a step before its forward
  // averages its next batch with the others' current one, unnoticed until it runs out early. Keeps
  // the loader's counter, not the loader.
  template <typename Loader>
    requires requires(const Loader& loader) { loader.batches_taken(); }
  // The same for a function that counts the batches taken.
  void follow(const Loader& loader) {
    follow(loader.batches_taken());
  }
  void follow(std::function<int64_t()> batches_taken) {
    reducer().follow(std::move(batches_taken));
  }

  // A communicator of its own, of the same ranks as the given one: hooks inside backward do not
  // interleave with other calls.
  Communicator& comm() { return replica_->comm(); }
  // The time that backward spends on communication, and the bytes that it copied.
  ReducerTimes times() const { return reducer().times(); }
  // 0 before the first backward that communicates.
  size_t bucket_count() const { return reducer().bucket_count(); }

 private:
  Reducer& reducer() const { return replica_->reducer(); }

  // For an output without known tensors the parameters' own hooks suffice, except for nested
  // backwards.
  template <typename T>
  void watch(T& output) {
    flat::for_each_tensor(output, [this](at::Tensor& tensor) { reducer().watch(tensor); });
  }
  template <typename T>
  static void weigh(T& output, double weight) {
    if constexpr (std::is_same_v<T, c10::IValue>) {
      if (flat::holds_object(output)) internal::throw_cannot_weigh();
    }
    bool any = false;
    flat::for_each_tensor(output, [weight, &any](at::Tensor& tensor) {
      tensor = internal::weigh_gradient(tensor, weight);
      any = true;
    });
    if (!any) internal::throw_cannot_weigh();
  }

  M module_;
  std::shared_ptr<internal::Replica> replica_;
};

template <typename M>
DistributedDataParallel(M, Communicator) -> DistributedDataParallel<M>;
template <typename M>
DistributedDataParallel(M, Communicator, DdpOptions) -> DistributedDataParallel<M>;

}  // namespace lockstep::inline v0
