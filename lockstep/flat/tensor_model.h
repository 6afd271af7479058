// TensorModel: a plain list of named tensors and a function that computes with them, as a model
// that wrappers accept.
//
//   TensorModel model({{"w", w}, {"b", b}}, [=](const at::Tensor& x) { return x.matmul(w) + b; });
//   DistributedDataParallel ddp(model, comm);
//   loss(ddp(x)).backward();
#pragma once

#include <utility>

#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// F: any function object; it keeps what it needs of the tensors. Copies share the tensors.
template <typename F>
class TensorModel {
 public:
  // `parameters`: leaves, those to be trained with requires_grad. `buffers`: tensors that are no
  // parameters, but belong to the model, such as running means.
  TensorModel(NamedTensors parameters, F compute, NamedTensors buffers = {})
      : parameters_(std::move(parameters)),
        buffers_(std::move(buffers)),
        compute_(std::move(compute)) {}

  // The function's result.
  template <typename... Args>
  auto forward(Args&&... args) {
    return compute_(std::forward<Args>(args)...);
  }
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  const NamedTensors& named_parameters() const { return parameters_; }
  const NamedTensors& named_buffers() const { return buffers_; }
  // Whether forwards train; the function itself is not told.
  bool is_training() const { return training_; }
  void train(bool on = true) { training_ = on; }
  void eval() { train(false); }

 private:
  NamedTensors parameters_;
  NamedTensors buffers_;
  F compute_;
  bool training_ = true;
};

}  // namespace lockstep::inline v0
