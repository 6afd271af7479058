#include "lockstep/parallel/data_parallel/replicas.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <sstream>

#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/hooks/layer_hook.h"
#include "lockstep/parallel/data_parallel/replica_random.h"
#include "lockstep/parallel/data_parallel/replica_threads.h"
#include "lockstep/parallel/data_parallel/shared_tensors.h"

namespace lockstep::inline v0::data_parallel {

// How an output was joined.
struct Joined {
  bool is_stacked = false;       // made of tensors without dimensions
  std::vector<int64_t> lengths;  // the size of each replica's part along dim
};

namespace {

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.sizes() << ' ' << tensor.dtype().name();
  return out.str();
}

// Rethrows the first replica's exception as a ReplicaError.
void rethrow(const std::vector<std::exception_ptr>& errors, const std::vector<at::Device>& devices,
             const char* what) {
  for (size_t r = 0; r < errors.size(); ++r) {
    if (!errors[r]) continue;
    std::string text = "DataParallel: " + std::string(what) + " of replica " + std::to_string(r) +
                       " (" + devices[r].str() + ") failed: ";
    try {
      std::rethrow_exception(errors[r]);
    } catch (const c10::Error& error) {
      std::throw_with_nested(
          ReplicaError(text + error.what_without_backtrace(), static_cast<int>(r)));
    } catch (const std::exception& error) {
      std::throw_with_nested(ReplicaError(text + error.what(), static_cast<int>(r)));
    } catch (...) {
      std::throw_with_nested(ReplicaError(text + "unknown exception", static_cast<int>(r)));
    }
  }
}

}  // namespace

class Replicas::State {
 public:
  State(ModulePtr module, std::vector<ModulePtr> copies, std::vector<at::Device> devices,
        const DataParallelOptions& options);

  struct Step;
  class Join;

  std::vector<Tensors> scatter(const Tensors& inputs) const;
  void refresh(size_t used);
  // Runs task(r) for each replica, on its thread.
  void run(const std::vector<bool>& wanted, const std::function<void(size_t)>& task,
           const char* what);
  Tensors gather(const std::vector<Tensors>& outputs, std::vector<Joined>& joined) const;
  Tensors backward(Step& step, const Tensors& grads);

  struct Roots {
    std::vector<Tensors> outputs, gradients;  // of each replica
  };
  Roots cut(const Step& step, const Tensors& grads);
  std::vector<Tensors> run_backwards(Step& step, const Roots& roots);
  void forget_gradients(Step& step, size_t replica);
  static at::Tensor sum_of(Tensors grads, at::Device target);
  at::Tensor joined_gradient(const Step& step, size_t input, Tensors grads) const;
  void count_memory(const Step& step, int64_t incoming);

  ModulePtr module_;
  std::vector<ModulePtr> copies_;
  std::vector<at::Device> devices_;
  at::Device output_device_;
  int64_t dim_;
  std::vector<std::pair<torch::nn::Module*, std::vector<torch::nn::Module*>>> modes_;
  std::vector<Shared> parameters_, buffers_;
  flat::WrappedParameters wrapped_;
  DataParallelTraffic traffic_;
  ReplicaThreads threads_;
};

// One forward, kept as long as its graph.
struct Replicas::State::Step : torch::CustomClassHolder {
  std::shared_ptr<State> state;
  std::vector<size_t> parameters;  // that require gradients, as indices of parameters_
  std::vector<size_t> inputs;      // that require gradients, as indices of the inputs
  Tensors whole_inputs;            // only shapes; defined only for those in `inputs`
  std::vector<Tensors> parts;      // the leaves of each replica's inputs
  std::vector<Tensors> outputs;    // per replica, with their graphs
  std::vector<Joined> joined;      // per output
  std::vector<size_t> tracked;     // indices of the outputs with a graph
};

// The node between the replicas' graphs and the caller's graph.
class Replicas::State::Join : public torch::autograd::Function<Join> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                at::TensorList /*tracked*/,
                                                const c10::intrusive_ptr<Step>& step,
                                                const Tensors* outputs) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["step"] = c10::IValue::make_capsule(step);
    return *outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    if (at::GradMode::is_enabled()) {
      throw InvalidArgument(
          "DataParallel has no second derivatives: call backward() without create_graph");
    }
    const auto step = c10::static_intrusive_pointer_cast<Step>(ctx->saved_data["step"].toCapsule());
    torch::autograd::variable_list result = step->state->backward(*step, grads);
    result.resize(result.size() + 2);  // for the other arguments
    return result;
  }
};

Replicas::State::State(ModulePtr module, std::vector<ModulePtr> copies,
                       std::vector<at::Device> devices, const DataParallelOptions& options)
    : module_(std::move(module)),
      copies_(std::move(copies)),
      devices_(std::move(devices)),
      output_device_(options.output_device.value_or(devices_[0])),
      dim_(options.dim),
      wrapped_("DataParallel", parameters_of(*module_)),
      threads_(devices_.size()) {
  hooks::ThreadGenerator::prepare();
  std::vector<NamedDict> parameters, buffers;
  std::vector<std::vector<ModulePtr>> modules;
  for (const ModulePtr& copy : copies_) {
    parameters.push_back(copy->named_parameters());
    buffers.push_back(copy->named_buffers());
    modules.push_back(copy->modules());
  }
  parameters_ = match(module_->named_parameters(), parameters, "parameter");
  buffers_ = match(module_->named_buffers(), buffers, "buffer");
  const std::vector<ModulePtr> own = module_->modules();
  for (size_t i = 0; i < own.size(); ++i) {
    std::vector<torch::nn::Module*> others;
    for (const auto& copy : modules) {
      if (copy.size() != own.size())
        throw InvalidArgument("DataParallel: a replica has other submodules than the model");
      others.push_back(copy[i].get());
    }
    modes_.emplace_back(own[i].get(), std::move(others));
  }
}

std::vector<Tensors> Replicas::State::scatter(const Tensors& inputs) const {
  const auto is_cut = [](const at::Tensor& input) { return input.defined() && input.dim() > 0; };
  std::vector<Tensors> cut(inputs.size());
  size_t parts = 0;
  const at::Tensor* first = nullptr;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_cut(inputs[i])) continue;
    if (dim_ >= inputs[i].dim()) {
      throw InvalidArgument("DataParallel: an input of shape " + shape_of(inputs[i]) +
                            " has no dimension " + std::to_string(dim_) + " to be cut along");
    }
    cut[i] = inputs[i].detach().chunk(static_cast<int64_t>(devices_.size()), dim_);
    if (first == nullptr) {
      first = &inputs[i];
      parts = cut[i].size();
    } else if (cut[i].size() != parts) {
      throw InvalidArgument(
          "DataParallel: inputs of shapes " + shape_of(*first) + " and " + shape_of(inputs[i]) +
          " divide into " + std::to_string(parts) + " and " + std::to_string(cut[i].size()) +
          " parts for " + std::to_string(devices_.size()) +
          " replicas; give all the same length along dimension " + std::to_string(dim_));
    }
  }
  if (first == nullptr) parts = 1;  // nothing to divide
  std::vector<Tensors> result(parts);
  for (size_t r = 0; r < parts; ++r) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor& part = is_cut(inputs[i]) ? cut[i][r] : inputs[i];
      if (!part.defined()) {
        result[r].emplace_back();
        continue;
      }
      at::Tensor leaf = part.detach().to(devices_[r], /*non_blocking=*/true);
      if (inputs[i].requires_grad() && at::GradMode::is_enabled()) leaf.requires_grad_();
      result[r].push_back(std::move(leaf));
    }
  }
  return result;
}

void Replicas::State::refresh(size_t used) {
  const at::NoGradGuard no_grad;
  // Parents come before their children, so the mode that train() passes down is corrected there.
  for (const auto& [own, copies] : modes_) {
    for (torch::nn::Module* copy : copies) {
      if (copy->is_training() != own->is_training()) copy->train(own->is_training());
    }
  }
  for (size_t r = 0; r < used; ++r) {
    for (Shared& parameter : parameters_) {
      at::Tensor& copy = parameter.copies[r];
      if (devices_[r] == parameter.own.device())
        share_memory(copy, parameter.own);
      else
        copy_values(copy, parameter.own, devices_[r]);
      if (copy.requires_grad() != parameter.own.requires_grad())
        copy.requires_grad_(parameter.own.requires_grad());
      if (r > 0) traffic_.replicated += bytes_of(copy);
    }
    for (Shared& buffer : buffers_) {
      // The first replica's changes are kept, and the others' are discarded.
      if (r == 0)
        share_memory(buffer.copies[r], buffer.own);
      else
        copy_values(buffer.copies[r], buffer.own, devices_[r]);
      if (r > 0) traffic_.replicated += bytes_of(buffer.own);
    }
  }
  for (const auto& [own, copies] : modes_)
    for (torch::nn::Module* copy : copies) hooks::share_hooks(*own, *copy);
}

void Replicas::State::run(const std::vector<bool>& wanted, const std::function<void(size_t)>& task,
                          const char* what) {
  rethrow(threads_.run(wanted.size(),
                       [&](size_t r) {
                         if (wanted[r]) task(r);
                       }),
          devices_, what);
}

Tensors Replicas::State::gather(const std::vector<Tensors>& outputs,
                                std::vector<Joined>& joined) const {
  const size_t count = outputs[0].size();
  for (size_t r = 0; r < outputs.size(); ++r) {
    if (outputs[r].size() != count) {
      throw InvalidArgument("DataParallel: forward() returned " + std::to_string(count) +
                            " tensors in replica 0 and " + std::to_string(outputs[r].size()) +
                            " in replica " + std::to_string(r));
    }
  }
  const at::NoGradGuard no_grad;
  Tensors result(count);
  joined.resize(count);
  for (size_t k = 0; k < count; ++k) {
    if (!outputs[0][k].defined()) continue;
    Tensors parts;
    joined[k].is_stacked = outputs[0][k].dim() == 0;
    for (const Tensors& own : outputs) {
      parts.push_back(own[k].detach().to(output_device_, /*non_blocking=*/true));
      joined[k].lengths.push_back(joined[k].is_stacked ? 1 : own[k].size(dim_));
    }
    result[k] = joined[k].is_stacked ? at::stack(parts) : at::cat(parts, dim_);
  }
  return result;
}

// What each replica's backward starts from: its outputs, and its parts of their gradients.
Replicas::State::Roots Replicas::State::cut(const Step& step, const Tensors& grads) {
  const size_t used = step.outputs.size();
  Roots roots{std::vector<Tensors>(used), std::vector<Tensors>(used)};
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    const size_t k = step.tracked[i];
    int64_t offset = 0;
    for (size_t r = 0; r < used; ++r) {
      const Joined& joined = step.joined[k];
      const at::Tensor part = joined.is_stacked ? grads[i][static_cast<int64_t>(r)]
                                                : grads[i].narrow(dim_, offset, joined.lengths[r]);
      offset += joined.lengths[r];
      if (!step.outputs[r][k].requires_grad()) continue;
      roots.outputs[r].push_back(step.outputs[r][k]);
      roots.gradients[r].push_back(part.to(devices_[r], /*non_blocking=*/true));
      if (r > 0) traffic_.scattered_gradients += bytes_of(part);
    }
  }
  return roots;
}

void Replicas::State::forget_gradients(Step& step, size_t replica) {
  for (const size_t p : step.parameters) parameters_[p].copies[replica].mutable_grad().reset();
  for (const size_t i : step.inputs) step.parts[replica][i].mutable_grad().reset();
}

// Runs the replicas' backwards. Returns each replica's own gradients, of the step's parameters and
// then of its inputs; the next backward finds none.
std::vector<Tensors> Replicas::State::run_backwards(Step& step, const Roots& roots) {
  const size_t used = step.outputs.size();
  const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
  std::vector<bool> on_threads;
  Tensors together, together_grads;
  for (size_t r = 0; r < used; ++r) {
    const Tensors &outputs = roots.outputs[r], &gradients = roots.gradients[r];
    forget_gradients(step, r);
    on_threads.push_back(devices_[r].is_cpu() && !outputs.empty());
    if (devices_[r].is_cpu()) continue;
    together.insert(together.end(), outputs.begin(), outputs.end());
    together_grads.insert(together_grads.end(), gradients.begin(), gradients.end());
  }
  // On the CPU a backward runs on the calling thread. Every other device has a thread of the
  // engine, one of which may be this one: a single nested backward lets it continue with its own
  // device's part, while those of the other devices run concurrently.
  if (!together.empty()) torch::autograd::backward(together, together_grads, keep_graph);
  const auto backward = [&](size_t r) {
    torch::autograd::backward(roots.outputs[r], roots.gradients[r], keep_graph);
  };
  try {
    run(on_threads, backward, "backward");
  } catch (...) {
    for (size_t r = 0; r < used; ++r) forget_gradients(step, r);
    throw;
  }
  std::vector<Tensors> own(used);
  for (size_t r = 0; r < used; ++r) {
    for (const size_t p : step.parameters)
      own[r].push_back(std::move(parameters_[p].copies[r].mutable_grad()));
    for (const size_t i : step.inputs) own[r].push_back(std::move(step.parts[r][i].mutable_grad()));
    forget_gradients(step, r);
  }
  return own;
}

// The replicas' gradients of one parameter, or of an input that was not cut.
at::Tensor Replicas::State::sum_of(Tensors grads, at::Device target) {
  at::Tensor sum;
  for (at::Tensor& grad : grads) {
    if (!grad.defined()) continue;
    grad = grad.to(target);
    sum = sum.defined() ? sum.add_(grad) : grad;
  }
  return sum;
}

// The gradient of the input that `step` has at `input`, from those of its parts.
at::Tensor Replicas::State::joined_gradient(const Step& step, size_t input, Tensors grads) const {
  const at::Tensor& whole = step.whole_inputs[input];
  if (whole.dim() == 0) return sum_of(std::move(grads), whole.device());
  if (std::none_of(grads.begin(), grads.end(), [](const auto& grad) { return grad.defined(); }))
    return {};
  for (size_t r = 0; r < grads.size(); ++r) {
    if (!grads[r].defined()) grads[r] = at::zeros_like(step.parts[r][input]);
    grads[r] = grads[r].to(whole.device());
  }
  return at::cat(grads, dim_);
}

Tensors Replicas::State::backward(Step& step, const Tensors& grads) {
  std::vector<Tensors> own = run_backwards(step, cut(step, grads));
  ++traffic_.backwards;
  int64_t incoming = 0;  // the largest gradient of a parameter that came from another device
  const auto of_all = [&](size_t i) {
    Tensors all;
    for (Tensors& one : own) all.push_back(std::move(one[i]));
    for (size_t r = 1; r < all.size(); ++r) {
      traffic_.reduced += bytes_of(all[r]);
      if (i < step.parameters.size()) incoming = std::max(incoming, bytes_of(all[r]));
    }
    return all;
  };
  Tensors result;
  for (const size_t p : step.parameters)
    result.push_back(sum_of(of_all(result.size()), parameters_[p].own.device()));
  for (const size_t input : step.inputs)
    result.push_back(joined_gradient(step, input, of_all(result.size())));
  count_memory(step, incoming);
  return result;
}

void Replicas::State::count_memory(const Step& step, int64_t incoming) {
  int64_t parameters = 0, buffers = 0;
  for (const Shared& parameter : parameters_) parameters += bytes_of(parameter.own);
  for (const Shared& buffer : buffers_) buffers += bytes_of(buffer.own);
  const auto hold = [&](int64_t inputs, int64_t outputs, int64_t extra) {
    return 2 * parameters + buffers + inputs + 2 * outputs + extra;
  };
  int64_t all_inputs = 0, all_outputs = 0;
  for (size_t r = 0; r < step.outputs.size(); ++r) {
    const int64_t inputs = bytes_of(step.parts[r]), outputs = bytes_of(step.outputs[r]);
    all_inputs += inputs;
    all_outputs += outputs;
    if (r > 0)
      traffic_.other_device_bytes = std::max(traffic_.other_device_bytes, hold(inputs, outputs, 0));
  }
  traffic_.output_device_bytes =
      std::max(traffic_.output_device_bytes, hold(all_inputs, all_outputs, incoming));
}

Replicas::Replicas(ModulePtr module, std::vector<ModulePtr> copies, std::vector<at::Device> devices,
                   const DataParallelOptions& options)
    : state_(std::make_shared<State>(std::move(module), std::move(copies), std::move(devices),
                                     options)) {}

Replicas::~Replicas() = default;

const DataParallelTraffic& Replicas::traffic() const {
  return state_->traffic_;
}

Tensors Replicas::run(const Tensors& inputs, const Forward& forward) {
  State& state = *state_;
  state.wrapped_.check_members(*state.module_);
  auto step = c10::make_intrusive<State::Step>();
  step->parts = state.scatter(inputs);
  const size_t used = step->parts.size();
  state.refresh(used);

  ForwardSeeds seeds;
  step->outputs.resize(used);
  state.run(
      std::vector<bool>(used, true),
      [&](size_t r) {
        std::optional<ReplicaRandom> random;
        if (state.devices_[r].is_cpu()) random.emplace(seeds, r);
        step->outputs[r] = forward(r, step->parts[r]);
      },
      "forward");

  Tensors outputs = state.gather(step->outputs, step->joined);
  ++state.traffic_.forwards;
  std::vector<bool> differentiable(outputs.size(), false);
  for (size_t r = 0; r < used; ++r) {
    if (r > 0) {
      state.traffic_.scattered += bytes_of(step->parts[r]);
      state.traffic_.gathered += bytes_of(step->outputs[r]);
    }
    for (size_t k = 0; k < outputs.size(); ++k) {
      const at::Tensor& output = step->outputs[r][k];
      differentiable[k] = differentiable[k] || (output.defined() && output.requires_grad());
    }
  }
  Tensors leading;
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!differentiable[k]) continue;
    step->tracked.push_back(k);
    leading.push_back(outputs[k]);
  }
  if (leading.empty()) return outputs;
  const bool leads_back =
      std::any_of(inputs.begin(), inputs.end(),
                  [](const at::Tensor& one) { return one.defined() && one.requires_grad(); }) ||
      std::any_of(state.parameters_.begin(), state.parameters_.end(),
                  [](const Shared& one) { return one.own.requires_grad(); });
  if (!leads_back)
    throw InvalidArgument(
        "DataParallel: the output depends on parameters that the model does not know, whose "
        "gradients would be "
        "lost; give its modules to register_module()");

  Tensors tracked;
  for (size_t p = 0; p < state.parameters_.size(); ++p) {
    if (!state.parameters_[p].own.requires_grad()) continue;
    step->parameters.push_back(p);
    tracked.push_back(state.parameters_[p].own);
  }
  step->whole_inputs.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    step->inputs.push_back(i);
    step->whole_inputs[i] = inputs[i].detach();
    tracked.push_back(inputs[i]);
  }
  step->state = state_;
  const Tensors joined = State::Join::apply(at::TensorList(tracked), step, &leading);
  for (size_t i = 0; i < joined.size(); ++i) outputs[step->tracked[i]] = joined[i];
  return outputs;
}

}  // namespace lockstep::inline v0::data_parallel
