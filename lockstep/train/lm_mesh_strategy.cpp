#include "lockstep/train/lm_mesh_strategy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

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

struct Scaler final : torch::CustomClassHolder {
  explicit Scaler(std::shared_ptr<ParallelLm> model) : model(std::move(model)) {}
  std::shared_ptr<ParallelLm> model;
};

// A loss whose gradients are there already: backward gives them what it was multiplied with since.
class DoneNode final : public torch::autograd::Function<DoneNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& seed, double value,
                            const c10::intrusive_ptr<Scaler>& scaler) {
    context->saved_data["scaler"] = c10::IValue::make_capsule(scaler);
    return at::full({}, value, seed.options());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto scaler =
        c10::static_intrusive_pointer_cast<Scaler>(context->saved_data["scaler"].toCapsule());
    scaler->model->scale_gradients(gradients[0].item<double>());
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Of this rank's parts; the learning rate is its only option that counts after it was made.
class LmMeshOptimizer final : public torch::optim::Optimizer,
                              public optim::FusedStep,
                              public PendingGradients {
 public:
  LmMeshOptimizer(std::shared_ptr<ParallelLm> model,
                  std::vector<torch::optim::OptimizerParamGroup> groups,
                  std::unique_ptr<torch::optim::OptimizerOptions> defaults)
      : Optimizer(std::move(groups), std::move(defaults)), model_(std::move(model)) {}

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
    model_->set_learning_rate(param_groups().front().options().get_lr());
    ParallelLm::UpdateOptions how{.max_norm = options.max_norm};
    if (options.grad_scale.defined()) how.loss_scale = options.grad_scale.item<double>();
    return model_->update(how);
  }
  void synchronize() override { own_ = model_->synchronize(); }
  std::optional<std::vector<at::Tensor>> own_gradients() override { return own_; }
  void leave_out() override { model_->leave_out(); }

 private:
  std::shared_ptr<ParallelLm> model_;
  std::vector<at::Tensor> own_;
};

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
    Strategy::set_up(model, comm);
    std::map<std::string, at::Tensor> values;
    for (const auto& [name, tensor] : parameters_of(*model))
      values[name] = tensor.detach().view(-1);
    set_up_undrawn(std::move(model), std::move(comm),
                   [values](const std::string& name, int64_t begin, const at::Tensor& part) {
                     part.copy_(values.at(name).narrow(0, begin, part.numel()));
                   });
  }
  void set_up_undrawn(std::shared_ptr<torch::nn::Module> model, Communicator comm,
                      Initial initial) override {
    auto* const lm = dynamic_cast<TransformerLmImpl*>(model.get());
    if (lm == nullptr)
      throw InvalidArgument(
          "strategy " + name() +
          " divides a TransformerLm, and the model is another; give it data alone");
    keep(std::move(model), comm);
    parallel_ =
        std::make_shared<ParallelLm>(lm->config(), std::move(comm), how_,
                                     ParallelLmOptions{.values = std::move(initial),
                                                       .dropout_seed = options_.dropout_seed,
                                                       .prepare = options_.prepare});
    const std::weak_ptr<ParallelLm> weak = parallel_;
    lm->run_by(
        {.loss =
             [weak, lm](const at::Tensor& ids, const at::Tensor& targets,
                        const at::Tensor& lengths) {
               const auto parallel = alive(weak);
               const LmRowBatch batch{ids, targets, lengths};
               const auto type = at::TensorOptions().dtype(at::kFloat);
               if (!at::GradMode::is_enabled())
                 return at::full({}, parallel->evaluate(batch), type);
               parallel->module()->train(lm->is_training());
               const double loss = parallel->step(batch);
               const at::Tensor seed = at::full({}, 0, type).requires_grad_();
               return DoneNode::apply(seed, loss, c10::make_intrusive<Scaler>(parallel));
             },
         .scores =
             [weak](const at::Tensor& ids, const at::Tensor& targets, const at::Tensor& lengths) {
               return alive(weak)->scores({ids, targets, lengths});
             }});
  }
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      std::vector<torch::optim::OptimizerParamGroup> /*groups*/,
      const optim::Algorithm& algorithm) override {
    made().make_optimizer(algorithm);
    std::vector<at::Tensor> own;
    for (const LmParameterPart& part : made().parameters()) own.push_back(part.tensor);
    return std::visit(
        [&](const auto& options) -> std::unique_ptr<torch::optim::Optimizer> {
          using Options = std::decay_t<decltype(options)>;
          std::vector<torch::optim::OptimizerParamGroup> groups;
          groups.emplace_back(own, std::make_unique<Options>(options));
          return std::make_unique<LmMeshOptimizer>(parallel_, std::move(groups),
                                                   std::make_unique<Options>(options));
        },
        algorithm);
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
  bool has_whole_parameters() const override { return false; }
  bool divides_state() const override { return true; }
  StepMemory planned_memory(const torch::optim::Optimizer& /*optimizer*/) const override {
    return as_step(made().planned_memory());
  }
  StepMemory memory(torch::optim::Optimizer& /*optimizer*/) override {
    return as_step(made().memory());
  }
  bool divides_model() const override { return true; }
  Checkpoint divided_state() override { return made().share(); }
  void load_divided_state(const Checkpoint& checkpoint, const std::string& source) override {
    made().load(checkpoint, source);
    if (!checkpoint.trainer_json.empty())
      made().set_steps(static_cast<uint64_t>(
          trainer_state_from_json(checkpoint.trainer_json, source + "/trainer.json").step));
  }

 private:
  static StepMemory as_step(const ParallelLm::Memory& memory) {
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
};

}  // namespace

std::shared_ptr<Strategy> make_lm_mesh_strategy(LmParallelism how, LmMeshOptions options) {
  return std::make_shared<LmMeshStrategy>(std::move(how), std::move(options));
}

}  // namespace lockstep
