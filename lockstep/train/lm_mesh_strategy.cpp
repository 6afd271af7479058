#include "lockstep/train/lm_mesh_strategy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/pending_gradients.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/products/parallel_lm.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The gradients that a forward has computed, until the backward of its loss. Of the latest forward alone: the next one
// may compute in their memory.
struct HeldGradients final : torch::CustomClassHolder {
  explicit HeldGradients(std::shared_ptr<ParallelLm> parallel) : model(std::move(parallel)) {}
  std::shared_ptr<ParallelLm> model;
  std::vector<at::Tensor> trained;  // parameters that the optimizer has
  std::vector<at::Tensor> gradients;
  uint64_t forwards = 0;
  bool there = false;

  void drop() {
    there = false;
    gradients.clear();
  }
  at::Tensor step(const LmRowBatch& batch) {
    for (const at::Tensor& parameter : trained)
      if (parameter.grad().defined())
        throw InvalidArgument(
            "TransformerLm: there are gradients of a former backward, and a step of a model that "
            "is "
            "divided has one; call the optimizer's step() or zero_grad() before the next forward");
    drop();
    (void)model->take_gradients();  // of what is not trained
    const at::Tensor loss = model->step_unread(batch);
    gradients = model->take_gradients();
    there = true;
    ++forwards;
    return loss;
  }
};

// A loss whose gradients are there already: backward puts them in place, times what it was multiplied with since.
class DoneNode final : public torch::autograd::Function<DoneNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& seed,
                            const at::Tensor& value,
                            const c10::intrusive_ptr<HeldGradients>& held) {
    context->saved_data["held"] = c10::IValue::make_capsule(held);
    context->saved_data["forward"] = static_cast<int64_t>(held->forwards);
    return value.reshape({}).to(seed.options(), /*non_blocking=*/false, /*copy=*/true);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held =
        c10::static_intrusive_pointer_cast<HeldGradients>(context->saved_data["held"].toCapsule());
    const auto forward = static_cast<uint64_t>(context->saved_data["forward"].toInt());
    if (!held->there || held->forwards != forward)
      throw InvalidArgument(
          "TransformerLm: backward of a loss whose gradients are gone; of a model that is divided "
          "it comes once, and before the next forward");
    held->there = false;
    held->model->give_gradients(std::exchange(held->gradients, {}), gradients[0]);
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Of this rank's parts, in the groups that the caller gave.
class LmMeshOptimizer final : public torch::optim::Optimizer,
                              public optim::FusedStep,
                              public PendingGradients {
 public:
  // `self`: what the strategy knows of it, until it is gone.
  LmMeshOptimizer(std::shared_ptr<ParallelLm> model,
                  std::vector<torch::optim::OptimizerParamGroup> groups,
                  std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                  std::shared_ptr<LmMeshOptimizer*> self)
      : Optimizer(std::move(groups), std::move(defaults)),
        model_(std::move(model)),
        self_(std::move(self)) {
    *self_ = this;
  }
  ~LmMeshOptimizer() override { *self_ = nullptr; }

  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode gradients(true);
      loss = closure();
    }
    step(optim::StepOptions{});
    return loss;
  }
  optim::StepResult step(const optim::StepOptions& options) override {
    DividedParameters::Options of_groups;
    for (const auto& group : param_groups()) of_groups.push_back(group.options().clone());
    model_->divided().set_options(of_groups);
    ParallelLm::UpdateOptions how{.max_norm = options.max_norm};
    if (options.grad_scale.defined()) how.loss_scale = options.grad_scale.item<double>();
    return model_->update(how);
  }
  void synchronize() override { own_ = model_->divided().synchronize(); }
  std::optional<std::vector<at::Tensor>> own_gradients() override { return own_; }
  void leave_out() override { model_->divided().leave_out(); }

  void take_options() {
    const DividedParameters::Options loaded = model_->divided().options();
    for (size_t i = 0; i < loaded.size(); ++i) param_groups()[i].set_options(loaded[i]->clone());
  }

 private:
  std::shared_ptr<ParallelLm> model_;
  std::shared_ptr<LmMeshOptimizer*> self_;
  std::vector<at::Tensor> own_;
};

constexpr const char* kSteps = "dropout.json";  // in checkpoints: how many steps have drawn masks

uint64_t steps_of(const std::string& text, const std::string& source) {
  try {
    return nlohmann::json::parse(text).at("steps").get<uint64_t>();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(source + "/" + kSteps + ": says no number of steps");
  }
}

class LmMeshStrategy final : public Strategy {
 public:
  LmMeshStrategy(LmParallelism how, LmMeshOptions options)
      : how_(std::move(how)), options_(std::move(options)) {}

  std::string name() const override {
    return how_.zero > 0 ? "zero" + std::to_string(how_.zero) : "ddp";
  }
  std::string layout() const override { return made().str(); }

  Communicator data_ranks(const Communicator& comm) const override {
    return Mesh(comm, with_all_axes(how_.axes, comm.size())).over({"data", "expert"});
  }
  void set_up(std::shared_ptr<torch::nn::Module> model, Communicator comm) override {
    checked(*model, comm);
    Strategy::set_up(model, comm);
    std::map<std::string, at::Tensor> values;
    for (const auto& [name, tensor] : parameters_of(*model)) values[name] = tensor.detach();
    set_up_undrawn(std::move(model), std::move(comm),
                   [values](const std::string& name, int64_t begin, const at::Tensor& part) {
                     part.copy_(values.at(name).view(-1).narrow(0, begin, part.numel()));
                   });
    // Those of float64 went through float32.
    const at::NoGradGuard no_grad;
    for (const DividedParameter& part : made().parameters()) {
      if (part.tensor.scalar_type() != at::kDouble) break;
      const at::Tensor& whole = values.at(part.name);
      const PartSlice& slice = part.slice;
      part.tensor.copy_(
          slice.whole() ? whole : whole.narrow(slice.dim, slice.begin, slice.end - slice.begin));
    }
  }
  void set_up_undrawn(std::shared_ptr<torch::nn::Module> model, Communicator comm,
                      Initial initial) override {
    TransformerLmImpl* const lm = checked(*model, comm);
    const at::ScalarType dtype = lm->parameters().front().scalar_type();
    const at::Device device = comm.device();
    keep(std::move(model), comm);
    parallel_ =
        std::make_shared<ParallelLm>(lm->config(), std::move(comm), how_,
                                     ParallelLmOptions{.values = std::move(initial),
                                                       .dtype = dtype,
                                                       .dropout_seed = options_.dropout_seed,
                                                       .prepare = options_.prepare});
    held_ = c10::make_intrusive<HeldGradients>(parallel_);
    const std::weak_ptr<ParallelLm> weak = parallel_;
    const c10::weak_intrusive_ptr<HeldGradients> held(held_);
    lm->run_by(
        {.loss =
             [weak, held, lm, dtype, device](const at::Tensor& ids, const at::Tensor& targets,
                                             const at::Tensor& lengths) {
               const auto parallel = alive(weak);
               const LmRowBatch batch{ids, targets, lengths};
               const auto type = at::TensorOptions(dtype).device(device);
               if (!at::GradMode::is_enabled())
                 return at::full({}, parallel->evaluate(batch), type);
               parallel->module()->train(lm->is_training());
               const auto gradients = held.lock();
               const at::Tensor loss = gradients->step(batch);
               const at::Tensor seed = at::zeros({}, type).requires_grad_();
               return DoneNode::apply(seed, loss, gradients);
             },
         .scores =
             [weak](const at::Tensor& ids, const at::Tensor& targets, const at::Tensor& lengths) {
               return alive(weak)->scores({ids, targets, lengths});
             },
         .routers = [weak] { return alive(weak)->routers(); }});
  }
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      std::vector<torch::optim::OptimizerParamGroup> groups,
      const optim::Algorithm& algorithm) override {
    const std::vector<OptimizerGroup> named = named_groups(groups, algorithm);
    made().divided().make_optimizer(algorithm, named);
    std::map<std::string, at::Tensor> parts;
    for (const DividedParameter& part : made().parameters()) parts[part.name] = part.tensor;
    std::vector<torch::optim::OptimizerParamGroup> own;
    for (const OptimizerGroup& group : named) {
      std::vector<at::Tensor> tensors;
      for (const std::string& parameter : group.names)
        if (const auto found = parts.find(parameter); found != parts.end())
          tensors.push_back(found->second);
      held_->trained.insert(held_->trained.end(), tensors.begin(), tensors.end());
      own.emplace_back(std::move(tensors), group.options->clone());
    }
    return std::make_unique<LmMeshOptimizer>(parallel_, std::move(own), defaults_of(algorithm),
                                             optimizer_);
  }
  void check_optimizer(const torch::optim::Optimizer& optimizer) const override {
    if (dynamic_cast<const LmMeshOptimizer*>(&optimizer) == nullptr)
      throw InvalidArgument("strategy " + name() +
                            " divides parameters and state, so it makes the optimizer itself: "
                            "strategy->make_optimizer(groups, options)");
  }
  void communicate(bool on) override {
    if (!on)
      throw InvalidArgument("strategy " + name() +
                            " takes a step's batch in micro-batches; give more of these, or larger "
                            "batches, instead of accumulating");
  }
  Communicator evaluation_ranks(const Communicator& /*comm*/) const override {
    return made().mesh()["data"];
  }
  bool counts_batches() const override {
    const Mesh& mesh = made().mesh();
    return mesh.place("pipe") == 0 && mesh.place("context") == 0 && mesh.place("tensor") == 0;
  }
  bool has_whole_gradients() const override { return false; }
  bool divides_state() const override { return true; }
  StepMemory planned_memory(const torch::optim::Optimizer& /*optimizer*/) const override {
    return as_step(made().divided().planned_memory());
  }
  StepMemory memory(torch::optim::Optimizer& /*optimizer*/) override {
    StepMemory memory = as_step(made().divided().memory());
    memory.activations = made().pipeline().activation_bytes();
    return memory;
  }
  int64_t bytes_left(const std::function<std::shared_ptr<void>()>& forward) override {
    const uint64_t steps = made().steps();
    made().count_activations();
    forward().reset();
    held_->drop();
    const int64_t bytes = made().pipeline().activation_bytes();
    made().set_steps(steps);
    made().count_activations();
    return bytes;
  }
  int64_t micro_batches() const override { return made().parallelism().micro_batches; }
  bool divides_model() const override { return true; }
  Checkpoint divided_state() override {
    Checkpoint share = made().share();
    share.files[kSteps] = nlohmann::json{{"steps", made().steps()}}.dump() + "\n";
    return share;
  }
  void load_divided_state(const Checkpoint& checkpoint, const std::string& source,
                          CheckpointParts parts) override {
    made().load(checkpoint, source, parts);
    if (parts == CheckpointParts::kModelAndConfig) return;
    if (*optimizer_ != nullptr) (*optimizer_)->take_options();
    // Of other strategies' checkpoints it is known where training stood.
    if (const auto steps = checkpoint.files.find(kSteps); steps != checkpoint.files.end())
      made().set_steps(steps_of(steps->second, source));
    else if (!checkpoint.trainer_json.empty())
      made().set_steps(static_cast<uint64_t>(
          trainer_state_from_json(checkpoint.trainer_json, source + "/trainer.json").step));
  }
  NamedTensors gathered_parameters() override { return made().gather(); }
  std::shared_ptr<void> whole_parameters() override {
    return parallel_ ? parallel_->divided().whole() : nullptr;
  }

 private:
  // The language model that `model` is, of a type and a size that can be divided so. Sends nothing.
  TransformerLmImpl* checked(torch::nn::Module& model, const Communicator& comm) const {
    auto* const lm = dynamic_cast<TransformerLmImpl*>(&model);
    if (lm == nullptr)
      throw InvalidArgument(
          "strategy " + name() +
          " divides a TransformerLm, and the model is another; give it data alone");
    for (const auto& [parameter, tensor] : parameters_of(model)) {
      if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kDouble)
        throw InvalidArgument("strategy " + name() + ": '" + parameter +
                              "' is neither float32 nor float64; convert the model, and put "
                              "autocast around its forward for bfloat16 products");
    }
    check(how_, lm->config(), comm.size());
    return lm;
  }

  static std::unique_ptr<torch::optim::OptimizerOptions> defaults_of(
      const optim::Algorithm& algorithm) {
    return std::visit(
        [](const auto& options) -> std::unique_ptr<torch::optim::OptimizerOptions> {
          return std::make_unique<std::decay_t<decltype(options)>>(options);
        },
        algorithm);
  }

  // By the names that the model has for their parameters, without those that require no gradient.
  std::vector<OptimizerGroup> named_groups(
      const std::vector<torch::optim::OptimizerParamGroup>& groups,
      const optim::Algorithm& algorithm) const {
    std::map<const at::TensorImpl*, std::string> names;
    for (const auto& [parameter, tensor] : parameters_of(model()))
      names.emplace(tensor.unsafeGetTensorImpl(), parameter);
    std::vector<OptimizerGroup> named;
    for (const auto& group : groups) {
      OptimizerGroup& one = named.emplace_back();
      one.options = group.has_options() ? group.options().clone() : defaults_of(algorithm);
      for (const at::Tensor& tensor : group.params()) {
        const auto found = names.find(tensor.unsafeGetTensorImpl());
        if (found == names.end())
          throw InvalidArgument("strategy " + name() + ": group " +
                                std::to_string(named.size() - 1) +
                                " has a tensor that is no parameter of the model; make groups of "
                                "the model that the strategy was set up with");
        if (tensor.requires_grad()) one.names.push_back(found->second);
      }
    }
    return named;
  }

  static StepMemory as_step(const DividedParameters::Memory& memory) {
    return {.parameters = memory.parameters,
            .gradients = memory.gradients,
            .state = memory.state,
            .buffers = memory.buffers};
  }
  static std::shared_ptr<ParallelLm> alive(const std::weak_ptr<ParallelLm>& weak) {
    auto parallel = weak.lock();
    if (!parallel)
      throw InvalidArgument("TransformerLm: the strategy that divided it is gone, and its parts");
    return parallel;
  }
  ParallelLm& made() const {
    if (!parallel_) throw InvalidArgument("strategy " + name() + ": set_up() comes first");
    return *parallel_;
  }

  LmParallelism how_;
  LmMeshOptions options_;
  std::shared_ptr<ParallelLm> parallel_;
  c10::intrusive_ptr<HeldGradients> held_;
  std::shared_ptr<LmMeshOptimizer*> optimizer_ = std::make_shared<LmMeshOptimizer*>(nullptr);
};

}  // namespace

std::shared_ptr<Strategy> make_lm_mesh_strategy(LmParallelism how, LmMeshOptions options) {
  return std::make_shared<LmMeshStrategy>(std::move(how), std::move(options));
}

}  // namespace lockstep
