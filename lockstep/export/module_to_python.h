// A module's twin in PyTorch, as text: what `lockstep export --twin` takes for models of your own.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0 {

// The assumptions that the writer may make about a user's own modules.
struct TwinOptions {
  // Types, as Module::name() gives them, that derive from Sequential and whose forward() calls their modules in their order
  // and does nothing else. libtorch's Sequential cannot be put into another one; such a class can.
  std::vector<std::string> in_order = {};
};

// The text of a Python file with a torch.nn.Module called `name`, and make(), which gives one. Its state_dict has the names
// and shapes of `module`, so that what save() wrote is loaded as it is; it computes what Sequential::forward() does.
//
// `module` is a Sequential, one of `in_order`, or a ModuleList or a ModuleDict, whose modules the twin calls in their order, as a
// comment there says; of further ones, at any depth, and of these layers: Linear; Conv1d to Conv3d, ConvTranspose1d to
// ConvTranspose3d; BatchNorm1d to BatchNorm3d, InstanceNorm1d to InstanceNorm3d, LayerNorm, GroupNorm; Embedding; Dropout,
// Dropout2d, Dropout3d; Flatten, Unflatten, Identity; MaxPool, AvgPool, AdaptiveAvgPool, AdaptiveMaxPool in 1 to 3 dims; ReLU,
// ReLU6, LeakyReLU, PReLU, ELU, SELU, CELU, GELU, SiLU, Mish, Sigmoid, LogSigmoid, Tanh, Tanhshrink, Softplus, Softsign,
// Softshrink, Hardshrink, Hardtanh, Threshold, GLU, Softmax, LogSoftmax, Softmin. Options are the module's; values are not
// in the text.
//
// Throws: InvalidArgument, one line, for a `name` that is no name of a Python class, and for modules that are none of these,
// such as one with a forward of its own or a Functional; all of them are named with their paths and types.
// Thread-safety: as long as no thread changes the module.
LOCKSTEP_API std::string module_to_python(const torch::nn::Module& module, const std::string& name,
                                          const TwinOptions& options = {});

}  // namespace lockstep::inline v0
