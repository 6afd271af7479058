// DataParallel: one process, with a replica of the model on each of several devices, or several on
// the CPU. A batch is cut into parts, each replica computes its own, and the outputs are joined:
// scatter, replicate, parallel apply, gather. Backward takes the same path, and ends with the sum
// of the replicas' gradients in the model's own. The results are the plain model's.
//
//   Net net;
//   lockstep::DataParallel model(net, {.replicas = 2});
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   auto loss = criterion(model(input), target);
//   loss.backward();
//
// Its advantage is that it needs only one line. All parameters, inputs, outputs and gradients pass
// through one device (docs/data-parallel.md has the figures); DistributedDataParallel avoids that.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/flat/module_pointer.h"
#include "lockstep/flat/nested.h"
#include "lockstep/parallel/data_parallel/replicas.h"

namespace lockstep::inline v0 {

// M is a ModuleHolder (made by TORCH_MODULE) or a std::shared_ptr to a module, with any forward().
//
// Replicas are made once, with the wrapper: by the module's clone(), which it has if it derives
// from torch::nn::Cloneable, or by the function given as the last argument, which makes a module of
// the same kind (its values do not matter). Replicas on the module's device share the memory of its
// parameters, so an optimizer's step takes effect at once; those on other devices get the
// parameters before every forward. Other plain members of a module stay each replica's own.
//
// forward: tensors in the arguments, also those inside vectors, maps and the like (flat/nested.h),
// are cut along `dim` like Tensor::chunk, and every other argument is copied. Tensors without
// dimensions go to all replicas. If there are fewer parts than replicas, the remaining replicas are
// idle. In the result, tensors are joined along `dim`; those without dimensions become a vector
// with one entry per replica; the rest of the result is the first replica's. Each replica runs on a
// thread of its own, with the caller's grad mode and autocast.
//
// backward: the replicas' parts run on their threads again. Gradients are added in the order of the
// replicas, so a run repeats bit for bit. A parameter that no replica used gets no gradient. Second
// derivatives are not supported: InvalidArgument with create_graph.
//
// Hooks (hooks/forward_hook.h) around libtorch's layers apply to the replicas too, as they are at
// the time of a forward; those around a Sequential or a Hookable are the ones from the replicas'
// creation.
//
// Buffers, such as BatchNorm's statistics, are copied to all replicas before each forward; the
// first replica's changes are kept, those of the others dropped. Random operations on the CPU use
// one generator per replica, seeded from the default one: torch::manual_seed() makes a run
// repeatable. Training mode, requires_grad, type and device of the parameters follow the module. A
// parameter that was added or replaced since is InvalidArgument that names it, at the next forward.
//
// An exception of a replica, in forward or backward, arrives as ReplicaError when all replicas have
// ended; gradients are then unchanged. Not copyable; movable.
// Thread-safety: one thread at a time.
template <typename M>
class DataParallel {
  static_assert(
      ModulePointer<M>,
      "DataParallel wraps a module: give its holder (TORCH_MODULE) or a std::shared_ptr to it");
  using Module = std::remove_reference_t<decltype(*std::declval<M&>())>;

 public:
  // Throws InvalidArgument for no devices or replicas, a model that is not on the first device or
  // cannot be cloned, and a function that makes another kind of model.
  explicit DataParallel(M module, const DataParallelOptions& options = {},
                        const std::function<M()>& make = nullptr)
      : module_(std::move(module)) {
    const std::vector<at::Device> devices = data_parallel::devices_for(*module_, options);
    std::vector<data_parallel::ModulePtr> copies;
    for (size_t r = 0; r < devices.size(); ++r) {
      replicas_.push_back(make ? pointer(make()) : clone());
      copies.push_back(replicas_.back());
    }
    engine_ = std::make_unique<data_parallel::Replicas>(pointer(module_), std::move(copies),
                                                        devices, options);
  }

  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }
  // The same as operator().
  template <typename... Args>
  auto forward(Args&&... args) {
    using data_parallel::Tensors;
    std::tuple<std::decay_t<Args>...> arguments(std::forward<Args>(args)...);
    const auto call = [](Module& module, auto& values) {
      return std::apply([&module](auto&... value) { return module.forward(value...); }, values);
    };
    using Result = decltype(call(*module_, arguments));
    std::vector<std::optional<Result>> results(replicas_.size());
    const Tensors outputs =
        engine_->run(flat::tensors_of(arguments), [&](size_t replica, const Tensors& part) {
          auto own = arguments;
          flat::set_tensors(own, part);
          Result& result = results[replica].emplace(call(*replicas_[replica], own));
          return flat::tensors_of(result);
        });
    Result result = std::move(*results[0]);
    flat::set_tensors(result, outputs);
    return result;
  }

  // The wrapped module, for optimizers, state dicts and checkpoints.
  M& module() { return module_; }
  const M& module() const { return module_; }
  auto operator->() { return &*module_; }
  auto operator->() const { return &*module_; }

  size_t replicas() const { return replicas_.size(); }  // of the model, the first included
  const DataParallelTraffic& traffic() const { return engine_->traffic(); }  // so far

 private:
  static std::shared_ptr<Module> pointer(const M& module) {
    if constexpr (requires { module.ptr(); })
      return module.ptr();
    else
      return module;
  }
  std::shared_ptr<Module> clone() const {
    std::shared_ptr<Module> copy;
    std::string reason = "its clone() returns another type";
    try {
      copy = std::dynamic_pointer_cast<Module>(pointer(module_)->clone());
    } catch (const std::exception& error) {
      reason = error.what();
      reason = reason.substr(0, reason.find('\n'));
    }
    if (copy) return copy;
    throw InvalidArgument("DataParallel: " + module_->name() +
                          " cannot be cloned for the replicas: " + reason +
                          "; derive it from torch::nn::Cloneable, or give DataParallel a function "
                          "that makes one");
  }

  M module_;
  std::vector<std::shared_ptr<Module>> replicas_;
  std::unique_ptr<data_parallel::Replicas> engine_;
};

template <typename M>
DataParallel(M) -> DataParallel<M>;
template <typename M>
DataParallel(M, DataParallelOptions) -> DataParallel<M>;
template <typename M, typename Make>
DataParallel(M, DataParallelOptions, Make) -> DataParallel<M>;

}  // namespace lockstep::inline v0
