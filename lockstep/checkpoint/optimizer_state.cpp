#include "lockstep/checkpoint/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/checkpoint/named_optimizer_state.h"
#include "lockstep/checkpoint/optimizer_kind.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/steps_on_device.h"

namespace lockstep::inline v0 {
namespace {

using nlohmann::json;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

// Reads the state tensors of one parameter by name, to restore them.
class ParamReader {
 public:
  ParamReader(const Safetensors& file, std::string prefix, const at::Tensor& param,
              const std::string& source, std::set<std::string>* used)
      : file_(file), prefix_(std::move(prefix)), param_(param), source_(source), used_(used) {}

  bool has(const char* name) const { return file_.find(prefix_ + name) != nullptr; }

  // A tensor shaped like the parameter, on its device.
  at::Tensor tensor(const char* name) const {
    const at::Tensor& value = get(name);
    if (value.sizes() != param_.sizes() || value.scalar_type() != param_.scalar_type()) {
      throw CheckpointError(source_ + ": " + prefix_ + name +
                            " has another shape or dtype than its parameter");
    }
    return at::empty_like(param_).copy_(value);
  }
  at::Tensor optional_tensor(const char* name) const {
    return has(name) ? tensor(name) : at::Tensor();
  }
  int64_t integer(const char* name) const {
    const at::Tensor& value = get(name);
    if (value.numel() != 1 || value.scalar_type() != at::kLong) {
      throw CheckpointError(source_ + ": " + prefix_ + name + " is not one int64");
    }
    return value.item<int64_t>();
  }

 private:
  const at::Tensor& get(const char* name) const {
    const at::Tensor* value = file_.find(prefix_ + name);
    if (value == nullptr) throw CheckpointError(source_ + ": has no " + prefix_ + name);
    used_->insert(prefix_ + name);
    return *value;
  }

  const Safetensors& file_;
  std::string prefix_;
  const at::Tensor& param_;
  const std::string& source_;
  std::set<std::string>* used_;
};

// The properties of one kind of optimizer.
struct Kind {
  const char* name;
  bool (*is)(const Optimizer&);
  void (*save_param)(const OptimizerParamState&, const std::string& prefix, NamedTensors*);
  std::unique_ptr<OptimizerParamState> (*load_param)(const ParamReader&);
  const char* first_name;  // present whenever a parameter has state
  json (*save_options)(const OptimizerOptions&);
  void (*load_options)(const json&, OptimizerOptions*);
};

template <class T>
bool is_a(const Optimizer& optimizer) {
  return dynamic_cast<const T*>(&optimizer) != nullptr;
}

void add(NamedTensors* out, const std::string& name, const at::Tensor& tensor) {
  if (tensor.defined()) out->emplace_back(name, tensor);
}

void add_step(NamedTensors* out, const std::string& prefix, int64_t step) {
  add(out, prefix + "step", at::scalar_tensor(step, at::TensorOptions().dtype(at::kLong)));
}

void save_sgd_param(const OptimizerParamState& state, const std::string& prefix,
                    NamedTensors* out) {
  add(out, prefix + "momentum_buffer",
      static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer());
}

std::unique_ptr<OptimizerParamState> load_sgd_param(const ParamReader& reader) {
  auto state = std::make_unique<torch::optim::SGDParamState>();
  state->momentum_buffer(reader.tensor("momentum_buffer"));
  return state;
}

json save_sgd_options(const OptimizerOptions& base) {
  const auto& options = static_cast<const torch::optim::SGDOptions&>(base);
  return {{"lr", options.lr()},
          {"momentum", options.momentum()},
          {"dampening", options.dampening()},
          {"weight_decay", options.weight_decay()},
          {"nesterov", options.nesterov()}};
}

void load_sgd_options(const json& from, OptimizerOptions* base) {
  auto& options = static_cast<torch::optim::SGDOptions&>(*base);
  options.lr(from.at("lr").get<double>());
  options.momentum(from.at("momentum").get<double>());
  options.dampening(from.at("dampening").get<double>());
  options.weight_decay(from.at("weight_decay").get<double>());
  options.nesterov(from.at("nesterov").get<bool>());
}

template <class State>
void save_adam_param(const OptimizerParamState& base, const std::string& prefix,
                     NamedTensors* out) {
  const auto& state = static_cast<const State&>(base);
  add(out, prefix + "exp_avg", state.exp_avg());
  add(out, prefix + "exp_avg_sq", state.exp_avg_sq());
  add(out, prefix + "max_exp_avg_sq", state.max_exp_avg_sq());
  add_step(out, prefix, state.step());
}

template <class State>
std::unique_ptr<OptimizerParamState> load_adam_param(const ParamReader& reader) {
  auto state = std::make_unique<State>();
  state->step(reader.integer("step"));
  state->exp_avg(reader.tensor("exp_avg"));
  state->exp_avg_sq(reader.tensor("exp_avg_sq"));
  state->max_exp_avg_sq(reader.optional_tensor("max_exp_avg_sq"));
  return state;
}

template <class Options>
json save_adam_options(const OptimizerOptions& base) {
  const auto& options = static_cast<const Options&>(base);
  return {{"lr", options.lr()},
          {"betas", {std::get<0>(options.betas()), std::get<1>(options.betas())}},
          {"eps", options.eps()},
          {"weight_decay", options.weight_decay()},
          {"amsgrad", options.amsgrad()}};
}

template <class Options>
void load_adam_options(const json& from, OptimizerOptions* base) {
  auto& options = static_cast<Options&>(*base);
  options.lr(from.at("lr").get<double>());
  options.betas({from.at("betas").at(0).get<double>(), from.at("betas").at(1).get<double>()});
  options.eps(from.at("eps").get<double>());
  options.weight_decay(from.at("weight_decay").get<double>());
  options.amsgrad(from.at("amsgrad").get<bool>());
}

void save_rmsprop_param(const OptimizerParamState& base, const std::string& prefix,
                        NamedTensors* out) {
  const auto& state = static_cast<const torch::optim::RMSpropParamState&>(base);
  add(out, prefix + "square_avg", state.square_avg());
  add(out, prefix + "momentum_buffer", state.momentum_buffer());
  add(out, prefix + "grad_avg", state.grad_avg());
  add_step(out, prefix, state.step());
}

std::unique_ptr<OptimizerParamState> load_rmsprop_param(const ParamReader& reader) {
  auto state = std::make_unique<torch::optim::RMSpropParamState>();
  state->step(reader.integer("step"));
  state->square_avg(reader.tensor("square_avg"));
  state->momentum_buffer(reader.optional_tensor("momentum_buffer"));
  state->grad_avg(reader.optional_tensor("grad_avg"));
  return state;
}

json save_rmsprop_options(const OptimizerOptions& base) {
  const auto& options = static_cast<const torch::optim::RMSpropOptions&>(base);
  return {{"lr", options.lr()},
          {"alpha", options.alpha()},
          {"eps", options.eps()},
          {"weight_decay", options.weight_decay()},
          {"momentum", options.momentum()},
          {"centered", options.centered()}};
}

void load_rmsprop_options(const json& from, OptimizerOptions* base) {
  auto& options = static_cast<torch::optim::RMSpropOptions&>(*base);
  options.lr(from.at("lr").get<double>());
  options.alpha(from.at("alpha").get<double>());
  options.eps(from.at("eps").get<double>());
  options.weight_decay(from.at("weight_decay").get<double>());
  options.momentum(from.at("momentum").get<double>());
  options.centered(from.at("centered").get<bool>());
}

void save_adagrad_param(const OptimizerParamState& base, const std::string& prefix,
                        NamedTensors* out) {
  const auto& state = static_cast<const torch::optim::AdagradParamState&>(base);
  add(out, prefix + "sum", state.sum());
  add_step(out, prefix, state.step());
}

std::unique_ptr<OptimizerParamState> load_adagrad_param(const ParamReader& reader) {
  auto state = std::make_unique<torch::optim::AdagradParamState>();
  state->step(reader.integer("step"));
  state->sum(reader.tensor("sum"));
  return state;
}

json save_adagrad_options(const OptimizerOptions& base) {
  const auto& options = static_cast<const torch::optim::AdagradOptions&>(base);
  return {{"lr", options.lr()},
          {"lr_decay", options.lr_decay()},
          {"weight_decay", options.weight_decay()},
          {"initial_accumulator_value", options.initial_accumulator_value()},
          {"eps", options.eps()}};
}

void load_adagrad_options(const json& from, OptimizerOptions* base) {
  auto& options = static_cast<torch::optim::AdagradOptions&>(*base);
  options.lr(from.at("lr").get<double>());
  options.lr_decay(from.at("lr_decay").get<double>());
  options.weight_decay(from.at("weight_decay").get<double>());
  options.initial_accumulator_value(from.at("initial_accumulator_value").get<double>());
  options.eps(from.at("eps").get<double>());
}

template <class Adam, class Options, class State>
constexpr Kind adam_kind(const char* name) {
  return {name,
          is_a<Adam>,
          save_adam_param<State>,
          load_adam_param<State>,
          "exp_avg",
          save_adam_options<Options>,
          load_adam_options<Options>};
}

constexpr Kind kKinds[] = {
    {"SGD", is_a<torch::optim::SGD>, save_sgd_param, load_sgd_param, "momentum_buffer",
     save_sgd_options, load_sgd_options},
    adam_kind<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>("Adam"),
    adam_kind<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>(
        "AdamW"),
    {"RMSprop", is_a<torch::optim::RMSprop>, save_rmsprop_param, load_rmsprop_param, "square_avg",
     save_rmsprop_options, load_rmsprop_options},
    {"Adagrad", is_a<torch::optim::Adagrad>, save_adagrad_param, load_adagrad_param, "sum",
     save_adagrad_options, load_adagrad_options},
};

const Kind& kind_of(const Optimizer& optimizer) {
  for (const Kind& kind : kKinds) {
    if (kind.is(optimizer)) return kind;
  }
  throw InvalidArgument(
      "optimizer_state: only torch::optim::SGD, Adam, AdamW, RMSprop and Adagrad, and what derives "
      "from them, can be saved");
}

void settle(const Optimizer& optimizer) {
  if (const auto* own = dynamic_cast<const StepsOnDevice*>(&optimizer)) own->settle();
}

// The name of the optimizer in a file.
std::string name_of(const Optimizer& optimizer, const Kind& kind) {
  const auto* own = dynamic_cast<const OptimizerKind*>(&optimizer);
  return own != nullptr ? own->kind() : kind.name;
}

std::string group_key(size_t group) {
  return "group." + std::to_string(group);
}

void check_header(const Optimizer& optimizer, const Kind& kind, const Metadata& metadata,
                  const std::string& source) {
  const auto recorded = metadata.find("optimizer");
  if (recorded == metadata.end()) throw CheckpointError(source + ": holds no optimizer");
  if (recorded->second != name_of(optimizer, kind)) {
    throw CheckpointError(source + ": was saved from " + recorded->second +
                          ", but the optimizer is " + name_of(optimizer, kind));
  }
  const size_t groups = optimizer.param_groups().size();
  if (metadata.count(group_key(groups)) != 0 ||
      (groups > 0 && metadata.count(group_key(groups - 1)) == 0)) {
    throw CheckpointError(source + ": has another number of parameter groups than the optimizer, " +
                          std::to_string(groups));
  }
}

std::vector<std::unique_ptr<OptimizerOptions>> read_options(const Optimizer& optimizer,
                                                            const Kind& kind,
                                                            const Metadata& metadata,
                                                            const std::string& source) {
  std::vector<std::unique_ptr<OptimizerOptions>> options;
  size_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    options.push_back(group.options().clone());
    try {
      const json recorded = json::parse(metadata.at(group_key(index)));
      if (recorded.at("parameters").get<size_t>() != group.params().size()) {
        throw CheckpointError(source + ": parameter group " + std::to_string(index) +
                              " has another number of parameters");
      }
      kind.load_options(recorded, options.back().get());
    } catch (const json::exception&) {
      throw CheckpointError(source + ": the options of parameter group " + std::to_string(index) +
                            " cannot be read");
    }
    ++index;
  }
  return options;
}

}  // namespace

Safetensors optimizer_state(const Optimizer& optimizer) {
  settle(optimizer);
  const Kind& kind = kind_of(optimizer);
  Safetensors result;
  result.metadata["optimizer"] = name_of(optimizer, kind);
  size_t index = 0, group_index = 0;
  for (const auto& group : optimizer.param_groups()) {
    json options = kind.save_options(group.options());
    options["parameters"] = group.params().size();
    result.metadata[group_key(group_index++)] = options.dump();
    for (const at::Tensor& param : group.params()) {
      const auto state = optimizer.state().find(param.unsafeGetTensorImpl());
      if (state != optimizer.state().end()) {
        kind.save_param(*state->second, std::to_string(index) + ".", &result.tensors);
      }
      ++index;
    }
  }
  std::sort(result.tensors.begin(), result.tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return result;
}

void set_optimizer_state(Optimizer& optimizer, const Safetensors& state,
                         const std::string& source) {
  const Kind& kind = kind_of(optimizer);
  if (is_by_name(state.metadata))
    throw CheckpointError(source +
                          ": has the state by the names of parameters, as checkpoint directories "
                          "do; load it with their model: load_optimizer(optimizer, model, path)");
  check_header(optimizer, kind, state.metadata, source);
  auto options = read_options(optimizer, kind, state.metadata, source);

  const at::NoGradGuard no_grad;
  std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>> loaded;
  std::set<std::string> used;
  size_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& param : group.params()) {
      const ParamReader reader(state, std::to_string(index++) + ".", param, source, &used);
      if (reader.has(kind.first_name))
        loaded.emplace_back(param.unsafeGetTensorImpl(), kind.load_param(reader));
    }
  }
  for (const auto& [name, tensor] : state.tensors) {
    if (used.count(name) == 0)
      throw CheckpointError(source + ": " + name + " belongs to no parameter of the optimizer");
  }
  settle(optimizer);
  // Apart from out-of-memory errors nothing below throws, so the optimizer changes as a whole.
  optimizer.state().clear();
  for (auto& [param, param_state] : loaded) optimizer.state()[param] = std::move(param_state);
  for (size_t i = 0; i < options.size(); ++i)
    optimizer.param_groups()[i].set_options(std::move(options[i]));
}

void save_optimizer(const Optimizer& optimizer, const std::filesystem::path& path) {
  const Safetensors state = optimizer_state(optimizer);
  write_safetensors(path, state.tensors, state.metadata);
}

void load_optimizer(Optimizer& optimizer, const std::filesystem::path& path) {
  set_optimizer_state(optimizer, read_safetensors(path), path.string());
}

void load_optimizer(Optimizer& optimizer, const NamedTensors& parameters,
                    const std::filesystem::path& path) {
  SlicedTensors state = read_safetensors(path);
  if (const auto names = parameter_names(parameters, optimizer))
    state = by_position(std::move(state), *names, path.string());
  set_optimizer_state(optimizer, state.whole(), path.string());
}

}  // namespace lockstep::inline v0
