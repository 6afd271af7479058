// Models of the C interface.
#include "lockstep/c/model.h"

#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/c/internal/arrays.h"
#include "lockstep/c/internal/guard.h"
#include "lockstep/c/internal/handles.h"
#include "lockstep/c/internal/model_files.h"
#include "lockstep/c/internal/options.h"
#include "lockstep/c/internal/script_model.h"
#include "lockstep/c/internal/training.h"
#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"

struct lockstep_model {
  lockstep::c_api::ScriptModel model;
  std::vector<at::Tensor> outputs = {};  // of the last forward, of which arrays are views
  std::unique_ptr<lockstep::c_api::Training> training = nullptr;
};

namespace lockstep::inline v0::c_api {
namespace {

std::vector<at::Tensor> state_of(const ScriptModel& model) {
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : model.state()) values.push_back(tensor.detach());
  return values;
}

Training& training_of(lockstep_model* model) {
  lockstep_model& given = needed(model, "model");
  if (given.training) return *given.training;
  throw InvalidArgument("the model is not in training: call lockstep_model_start_training first");
}

// The other ranks, which compare their models, find that this one has none.
void show_no_model(Communicator& comm) {
  try {
    check_same_on_all_ranks(comm, {});
  } catch (const Error&) {
    // The caller's own mistake is said instead.
  }
}

static_assert(LOCKSTEP_C_ENDS_WITH(lockstep_mlp_options, dtype));

lockstep_model* new_model(torch::jit::Module module, at::Device device) {
  return new lockstep_model{ScriptModel(std::move(module), device)};
}

void put_out(const at::Tensor& value, lockstep_array& out, const std::string& name) {
  if (out.data == nullptr) {
    out = array_of(value);
    return;
  }
  const at::Tensor target = written_tensor(&out, name);
  if (target.sizes() != value.sizes()) {
    std::ostringstream text;
    text << name << " has the shape " << target.sizes() << ", and the model's output "
         << value.sizes();
    throw InvalidArgument(text.str());
  }
  target.copy_(value);
}

}  // namespace
}  // namespace lockstep::inline v0::c_api

namespace c_api = lockstep::c_api;
using c_api::guarded;
using c_api::needed;
using c_api::tensors_of;
using lockstep::InvalidArgument;

lockstep_status lockstep_model_load(const char* path, const char* device, lockstep_model** model) {
  return guarded([&] {
    lockstep_model*& result = needed(model, "model");
    result = nullptr;
    const at::Device on = c_api::device_of(device);
    result = c_api::new_model(c_api::read_script(&needed(path, "path"), on), on);
  });
}

lockstep_status lockstep_model_mlp(const lockstep_mlp_options* given, lockstep_model** model) {
  return guarded([&] {
    lockstep_model*& result = needed(model, "model");
    result = nullptr;
    const lockstep_mlp_options options = c_api::known_options(
        &needed(given, "options"), LOCKSTEP_MLP_OPTIONS, "lockstep_mlp_options");
    if (options.count < 0 || options.count > 4096)
      throw InvalidArgument("count: a network of " + std::to_string(options.count) + " sizes");
    std::vector<int64_t> sizes;
    for (int32_t i = 0; i < options.count; ++i)
      sizes.push_back((&needed(options.sizes, "sizes"))[i]);
    const at::Device on = c_api::device_of(options.device);
    torch::jit::Module net =
        c_api::make_mlp(sizes, c_api::text_or(options.activation, "tanh"),
                        c_api::dtype_of(options.dtype, "lockstep_mlp_options"), options.seed);
    net.to(on);
    result = c_api::new_model(std::move(net), on);
  });
}

lockstep_status lockstep_model_free(lockstep_model* model) {
  return guarded([&] { delete model; });
}

lockstep_status lockstep_model_parameter_count(lockstep_model* model, int32_t* count) {
  return guarded([&] {
    const auto n = needed(model, "model").model.parameters().size();
    needed(count, "count") = static_cast<int32_t>(n);
  });
}

lockstep_status lockstep_model_parameter(lockstep_model* model, int32_t index, const char** name,
                                         lockstep_array* array) {
  return guarded([&] {
    const lockstep::NamedTensors& all = needed(model, "model").model.parameters();
    if (index < 0 || static_cast<size_t>(index) >= all.size()) {
      throw InvalidArgument("index is " + std::to_string(index) + " of " +
                            std::to_string(all.size()) + " parameters");
    }
    const auto& [text, tensor] = all[static_cast<size_t>(index)];
    if (array != nullptr) *array = c_api::array_of(tensor);
    if (name != nullptr) *name = text.c_str();
  });
}

lockstep_status lockstep_model_broadcast(lockstep_model* model, lockstep_comm* comm, int32_t root) {
  return guarded([&] {
    if (model == nullptr && comm != nullptr) c_api::show_no_model(comm->comm);
    const c_api::ScriptModel& given = needed(model, "model").model;
    lockstep::Communicator& with = needed(comm, "comm").comm;
    lockstep::check_same_on_all_ranks(with, given.state());
    lockstep::broadcast_coalesced(with, c_api::state_of(given), root);
  });
}

lockstep_status lockstep_model_average(lockstep_model* model, lockstep_comm* comm) {
  return guarded([&] {
    std::vector<at::Tensor> values;
    for (const auto& [name, tensor] : needed(model, "model").model.parameters())
      values.push_back(tensor.detach());
    lockstep::all_reduce_coalesced(needed(comm, "comm").comm, values, lockstep::ReduceOp::kAvg);
  });
}

lockstep_status lockstep_model_forward(lockstep_model* model, const lockstep_array* inputs,
                                       int32_t input_count, lockstep_array* outputs,
                                       int32_t output_count) {
  return guarded([&] {
    lockstep_model& given = needed(model, "model");
    const at::NoGradGuard no_grad;
    given.model.eval();
    std::vector<at::Tensor> results =
        given.model.forward(tensors_of(inputs, input_count, "inputs"));
    if (output_count < 0 || static_cast<size_t>(output_count) != results.size()) {
      throw InvalidArgument("the model has " + std::to_string(results.size()) +
                            " outputs, and output_count is " + std::to_string(output_count));
    }
    needed(outputs, "outputs");
    given.outputs = std::move(results);
    for (size_t i = 0; i < given.outputs.size(); ++i)
      c_api::put_out(given.outputs[i], outputs[i], "outputs[" + std::to_string(i) + "]");
  });
}

lockstep_status lockstep_model_start_training(lockstep_model* model, lockstep_comm* comm,
                                              const lockstep_training_options* given) {
  return guarded([&] {
    if (model == nullptr && comm != nullptr) c_api::Training::leave_out(comm->comm);
    lockstep_model& trained = needed(model, "model");
    const lockstep::Communicator& with = needed(comm, "comm").comm;
    // The former training stays if this one cannot be made.
    auto training = std::make_unique<c_api::Training>(trained.model, with, given);
    trained.training = std::move(training);
  });
}

lockstep_status lockstep_model_train_step(lockstep_model* model, const lockstep_array* inputs,
                                          int32_t input_count, const lockstep_array* targets,
                                          int32_t target_count, double* loss) {
  return guarded([&] {
    c_api::Training& training = c_api::training_of(model);
    const double mean = training.step([&] { return tensors_of(inputs, input_count, "inputs"); },
                                      [&] { return tensors_of(targets, target_count, "targets"); });
    if (loss != nullptr) *loss = mean;
  });
}

lockstep_status lockstep_model_evaluate(lockstep_model* model, const lockstep_array* inputs,
                                        int32_t input_count, const lockstep_array* targets,
                                        int32_t target_count, double* loss) {
  return guarded([&] {
    c_api::Training& training = c_api::training_of(model);
    const double mean = training.evaluate([&] { return tensors_of(inputs, input_count, "inputs"); },
                                          [&] {
                                            needed(loss, "loss");
                                            return tensors_of(targets, target_count, "targets");
                                          });
    *loss = mean;
  });
}

lockstep_status lockstep_model_set_learning_rate(lockstep_model* model, double rate) {
  return guarded([&] { c_api::training_of(model).set_learning_rate(rate); });
}

lockstep_status lockstep_model_steps(const lockstep_model* model, int64_t* steps) {
  return guarded([&] {
    const auto& training = needed(model, "model").training;
    needed(steps, "steps") = training ? training->steps() : 0;
  });
}

lockstep_status lockstep_model_save(lockstep_model* model, const char* path) {
  return guarded([&] {
    const lockstep_model& given = needed(model, "model");
    c_api::save_checkpoint(given.model, given.training.get(), path);
  });
}

lockstep_status lockstep_model_restore(lockstep_model* model, const char* path) {
  return guarded([&] {
    lockstep_model& given = needed(model, "model");
    c_api::restore_checkpoint(given.model, given.training.get(), path);
  });
}

lockstep_status lockstep_model_save_script(lockstep_model* model, const char* path) {
  return guarded([&] {
    lockstep_model& given = needed(model, "model");
    c_api::save_script(given.model, given.training.get(), path);
  });
}
