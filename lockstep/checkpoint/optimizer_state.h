// The state of an optimizer as named tensors, so that training can continue where it stopped.
//
// Supported: torch::optim::SGD, Adam, AdamW, RMSprop, Adagrad, and optimizers that derive from them
// (optimizer_kind.h). A parameter is identified by its position, "<index>.<name>", counted through
// all parameter groups in order, e.g. "3.momentum_buffer" (SGD), "3.exp_avg", "3.exp_avg_sq",
// "3.step" (Adam, AdamW), "3.square_avg" (RMSprop), "3.sum" (Adagrad). In a checkpoint directory it
// is identified by the model's name for it: named_optimizer_state.h.
#pragma once

#include <filesystem>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace lockstep::inline v0 {

// The state tensors (the optimizer's own, not copies; counters as int64) and, as metadata, the
// optimizer's kind and the options of each parameter group as JSON ("group.0").
// Throws: InvalidArgument for an optimizer of another kind.
LOCKSTEP_API Safetensors optimizer_state(const torch::optim::Optimizer& optimizer);

// Restores the result of optimizer_state(), options included, on each parameter's device. The
// optimizer must be of the same kind, with parameters of the same number, shapes and grouping;
// otherwise throws CheckpointError that begins with `source`, and the optimizer is unchanged.
LOCKSTEP_API void set_optimizer_state(torch::optim::Optimizer& optimizer, const Safetensors& state,
                                      const std::string& source);

// The same through a safetensors file. Throw as the functions above, write_safetensors() and
// read_safetensors().
LOCKSTEP_API void save_optimizer(const torch::optim::Optimizer& optimizer,
                                 const std::filesystem::path& path);
LOCKSTEP_API void load_optimizer(torch::optim::Optimizer& optimizer,
                                 const std::filesystem::path& path);
// Also loads the optimizer.safetensors of a checkpoint directory, in whatever order this optimizer
// has the model's parameters. The model is one of any kind (flat/named_tensors.h), or the list of
// its parameters.
LOCKSTEP_API void load_optimizer(torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                                 const std::filesystem::path& path);
template <ModuleOrHolder M>
void load_optimizer(torch::optim::Optimizer& optimizer, const M& model,
                    const std::filesystem::path& path) {
  load_optimizer(optimizer, parameters_of(model), path);
}

}  // namespace lockstep::inline v0
