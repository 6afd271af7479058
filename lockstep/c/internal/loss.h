// The loss of a model's outputs: a name, a TorchScript file, or the caller's function.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/c/model.h"

namespace lockstep::inline v0::c_api {

// A mean over rows, and where its backward begins: from each root, with that gradient.
struct LossValue {
  double value = 0;
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> gradients;
};

using Loss = std::function<LossValue(const std::vector<at::Tensor>& outputs,
                                     const std::vector<at::Tensor>& targets)>;

// "mse", "l1", "cross_entropy" or "nll".
bool is_built_in_loss(const std::string& name);

// Throws: InvalidArgument for no loss or two, or a name that is neither a loss nor a file;
// DataError for a file that is no TorchScript.
Loss make_loss(const std::string& name, lockstep_loss_function function, void* context,
               at::Device device);

}  // namespace lockstep::inline v0::c_api
