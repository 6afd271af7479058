#include "lockstep/train/lm_mesh_strategy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

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

namespace lockstep::inline v0 {
namespace {

// Of this rank's parts, in the groups that the caller gave.
class LmMeshOptimizer final : public torch::optim::Optimizer,
                              public optim::FusedStep,
                              public PendingGradients {
 public:
  LmMeshOptimizer(std::shared_ptr<ParallelLm> model,
                  std::vector<torch::optim::OptimizerParamGroup> groups,
                  std::unique_ptr<torch::optim::OptimizerOptions> defaults)
      : Optimizer(std::move(groups), std::move(defaults)), model_(std::move(model)) {}
  // Of one that is gone: expired.
  std::weak_ptr<const void> lifetime() const { return life_; }

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
  std::shared_ptr<const void> life_ = std::make_shared<int>();
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

// What the three parts share.
struct LmMesh {
  Parallelism how;
  LmMeshOptions options;
  std::string name;

  std::shared_ptr<ParallelLm> parallel = nullptr;
  std::vector<at::Tensor> trained = {};  // parameters that the optimizer has
  LmMeshOptimizer* optimizer = nullptr;  // the caller's
  std::weak_ptr<const void> optimizers_life = {};
  // While a loss and its gradients are computed: the model's loss, once it is there.
  bool computes = false;
  at::Tensor loss = {};

  ParallelLm& made() const {
    if (!parallel) throw InvalidArgument("strategy " + name + ": set_up() comes first");
    return *parallel;
  }
  // The model's forward, whose gradients lie in grad() afterwards.
  at::Tensor forward(const LmRowBatch& batch, const at::TensorOptions& type, bool training) {
    if (!computes)
      throw InvalidArgument(
          "TransformerLm: ranks that divide a model compute its loss and gradients by one call: "
          "backward([&] { return loss; }) of Accelerator, or "
          "strategy->gradients().compute([&] { return loss; }); for the loss alone take a "
          "torch::NoGradGuard");
    if (loss.defined())
      throw InvalidArgument(
          "TransformerLm: a step of a model that is divided has one forward; give one larger "
          "batch, in more micro_batches");
    for (const at::Tensor& parameter : trained)
      if (parameter.grad().defined())
        throw InvalidArgument(
            "TransformerLm: there are gradients of a former backward, and a step of a model that "
            "is divided has one; call the optimizer's step() or zero_grad() before the next one");
    (void)parallel->take_gradients();  // of what is not trained
    parallel->module()->train(training);
    loss = parallel->step_unread(batch).detach().reshape({}).to(type, /*non_blocking=*/false,
                                                                /*copy=*/true);
    // Of which loops may make another loss in place.
    return loss.requires_grad_().clone();
  }
};
using LmMeshPtr = std::shared_ptr<LmMesh>;

// While it lives, the model's forward computes gradients, too; those of a step that fails are
// dropped.
class Computing {
 public:
  explicit Computing(LmMesh& mesh) : mesh_(mesh) { mesh_.computes = true; }
  ~Computing() {
    mesh_.computes = false;
    if (mesh_.loss.defined() && !done_) (void)mesh_.parallel->take_gradients();
    mesh_.loss = at::Tensor();
  }
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;
  void done() { done_ = true; }

 private:
  LmMesh& mesh_;
  bool done_ = false;
};

class LmMeshGradients final : public StrategyGradients {
 public:
  explicit LmMeshGradients(LmMeshPtr mesh) : mesh_(std::move(mesh)) {}
  void communicate(bool on) override {
    if (!on)
      throw InvalidArgument("strategy " + name() +
                            " takes a step's batch in micro-batches; give more of these, or larger "
                            "batches, instead of accumulating");
  }
  // What was made of the model's loss says what its gradients are multiplied with.
  void compute(const std::function<at::Tensor()>& loss, amp::GradScaler* scaler) override {
    if (scaler != nullptr)
      throw InvalidArgument("strategy " + name() + " takes no GradScaler; take bfloat16");
    Computing computing(*mesh_);
    const at::Tensor found = loss();
    if (!mesh_->loss.defined())
      throw InvalidArgument("strategy " + name() + ": the loss is not of the model's forward");
    found.backward();
    // A loss that does not come from the forward's has no gradient: the model's are zeros on all ranks.
    if (mesh_->loss.grad().defined())
      mesh_->parallel->scale_gradients(mesh_->loss.grad());
    else
      mesh_->parallel->scale_gradients(0.0);
    computing.done();
  }
  std::vector<at::Tensor> gradients() const override {
    std::vector<at::Tensor> gradients;
    for (const DividedParameter& part : mesh_->made().parameters()) {
      if (part.tensor.grad().defined()) gradients.push_back(part.tensor.grad());
    }
    return gradients;
  }
  bool counts_grad() const override { return false; }
  std::optional<int64_t> held() const override {
    const int64_t counted = mesh_->made().pipeline().activation_bytes();
    return counted > 0 ? counted : held_in_vain_;
  }

 protected:
  void compute_in_vain(const std::function<at::Tensor()>& loss,
                       const std::function<void()>& done) override {
    ParallelLm& made = mesh_->made();
    const uint64_t steps = made.steps();
    made.count_activations();
    {
      const Computing computing(*mesh_);
      loss().backward();
      done();
    }
    held_in_vain_ = made.pipeline().activation_bytes();
    made.set_steps(steps);
    made.count_activations();
  }

 private:
  LmMeshPtr mesh_;
  int64_t held_in_vain_ = 0;
};

class LmMeshState final : public StrategyState, public StateShares {
 public:
  explicit LmMeshState(LmMeshPtr mesh) : mesh_(std::move(mesh)) {}
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      std::vector<torch::optim::OptimizerParamGroup> groups,
      const optim::Algorithm& algorithm) override {
    const std::vector<OptimizerGroup> named = named_groups(groups, algorithm);
    mesh_->made().divided().make_optimizer(algorithm, named);
    mesh_->trained.clear();
    std::map<std::string, at::Tensor> parts;
    for (const DividedParameter& part : mesh_->made().parameters()) parts[part.name] = part.tensor;
    std::vector<torch::optim::OptimizerParamGroup> own;
    for (const OptimizerGroup& group : named) {
      std::vector<at::Tensor> tensors;
      for (const std::string& parameter : group.names)
        if (const auto found = parts.find(parameter); found != parts.end())
          tensors.push_back(found->second);
      mesh_->trained.insert(mesh_->trained.end(), tensors.begin(), tensors.end());
      own.emplace_back(std::move(tensors), group.options->clone());
    }
    auto optimizer =
        std::make_unique<LmMeshOptimizer>(mesh_->parallel, std::move(own), defaults_of(algorithm));
    mesh_->optimizer = optimizer.get();
    mesh_->optimizers_life = optimizer->lifetime();
    return optimizer;
  }
  void check_optimizer(const torch::optim::Optimizer& optimizer) const override {
    if (mesh_->optimizers_life.expired() || &optimizer != mesh_->optimizer)
      throw InvalidArgument("strategy " + name() +
                            " divides parameters and state, so it makes the optimizer itself: "
                            "strategy->state().make_optimizer(groups, options)");
  }
  Checkpoint share(torch::optim::Optimizer& /*optimizer*/) override {
    Checkpoint share = mesh_->made().share();
    share.files[kSteps] = nlohmann::json{{"steps", mesh_->made().steps()}}.dump() + "\n";
    return share;
  }
  void load(torch::optim::Optimizer* /*optimizer*/, const Checkpoint& checkpoint,
            const std::string& source, CheckpointParts parts) override {
    ParallelLm& made = mesh_->made();
    made.load(checkpoint, source, parts);
    if (parts == CheckpointParts::kModelAndConfig) return;
    if (!mesh_->optimizers_life.expired()) mesh_->optimizer->take_options();
    // Of other strategies' checkpoints it is known where training stood.
    if (const auto steps = checkpoint.files.find(kSteps); steps != checkpoint.files.end())
      made.set_steps(steps_of(steps->second, source));
    else if (!checkpoint.trainer_json.empty())
      made.set_steps(static_cast<uint64_t>(
          trainer_state_from_json(checkpoint.trainer_json, source + "/trainer.json").step));
  }
  NamedTensors gathered_parameters() override { return mesh_->made().gather(); }

  StateShares* shares() override { return this; }
  int64_t bytes() override { return mesh_->made().share_bytes(); }
  void write(const at::Tensor& into) override { mesh_->made().write_share(into); }
  void restore(const at::Tensor& share) override { mesh_->made().restore_share(share); }

  StepMemory planned_memory(const torch::optim::Optimizer& /*optimizer*/) const override {
    return as_step(mesh_->made().divided().planned_memory());
  }
  StepMemory memory(torch::optim::Optimizer& /*optimizer*/) override {
    StepMemory memory = as_step(mesh_->made().divided().memory());
    memory.activations = mesh_->made().pipeline().activation_bytes();
    return memory;
  }

 private:
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

  LmMeshPtr mesh_;
};

class LmMeshPlacement final : public StrategyPlacement {
 public:
  explicit LmMeshPlacement(LmMeshPtr mesh) : mesh_(std::move(mesh)) {}
  const std::shared_ptr<ParallelLm>& parallel() const { return mesh_->parallel; }
  std::string layout() const override { return mesh_->made().str(); }
  Communicator data_ranks(const Communicator& comm) const override {
    return Mesh(comm, with_all_axes(mesh_->how.axes, comm.size())).over({"data", "expert"});
  }
  Communicator evaluation_ranks(const Communicator& /*comm*/) const override {
    return mesh_->made().mesh()["data"];
  }
  std::shared_ptr<void> whole_parameters() override {
    return mesh_->parallel ? mesh_->parallel->divided().whole() : nullptr;
  }
  void set_up(const Strategy::Initial& initial) override {
    TransformerLmImpl& lm = checked();
    if (initial) return divide(lm, initial);
    StrategyPlacement::set_up(nullptr);
    std::map<std::string, at::Tensor> values;
    for (const auto& [name, tensor] : parameters_of(lm)) values[name] = tensor.detach();
    divide(lm, [values](const std::string& name, int64_t begin, const at::Tensor& part) {
      part.copy_(values.at(name).view(-1).narrow(0, begin, part.numel()));
    });
    // Those of float64 went through float32.
    const at::NoGradGuard no_grad;
    for (const DividedParameter& part : mesh_->made().parameters()) {
      if (part.tensor.scalar_type() != at::kDouble) break;
      const at::Tensor& whole = values.at(part.name);
      const PartSlice& slice = part.slice;
      part.tensor.copy_(
          slice.whole() ? whole : whole.narrow(slice.dim, slice.begin, slice.end - slice.begin));
    }
  }
  // Without values, until StateShares::restore().
  void bind() override {
    divide(checked(), [](const std::string&, int64_t, const at::Tensor&) {});
  }

 private:
  void divide(TransformerLmImpl& lm, const Strategy::Initial& initial) {
    // Of the former ranks: their memory goes before there is new.
    mesh_->trained.clear();
    mesh_->parallel.reset();
    const at::ScalarType dtype = lm.parameters().front().scalar_type();
    mesh_->parallel =
        std::make_shared<ParallelLm>(lm.config(), comm(), mesh_->how,
                                     ParallelLmOptions{.values = initial,
                                                       .dtype = dtype,
                                                       .dropout_seed = mesh_->options.dropout_seed,
                                                       .prepare = mesh_->options.prepare});
    const Mesh& mesh = mesh_->parallel->mesh();
    traits().counts_batches =
        mesh.place("pipe") == 0 && mesh.place("context") == 0 && mesh.place("tensor") == 0;
    traits().micro_batches = mesh_->parallel->parallelism().micro_batches;
    // The model is a name for what the ranks of a row compute together, in all generations.
    if (std::exchange(named_, &lm) != &lm)
      lm.forward_hooks().add([weak = std::weak_ptr<LmMesh>(mesh_), model = &lm,
                              type = at::TensorOptions(dtype).device(comm().device())](
                                 const auto& /*its units*/, const LmCall& call) {
        return computed(*alive(weak), call, type, model->is_training());
      });
    const at::NoGradGuard no_grad;
    for (const auto& [name, whole] : parameters_of(lm))
      whole.set_data(at::zeros({1}, whole.options()).expand(whole.sizes()));
  }
  static at::Tensor computed(LmMesh& mesh, const LmCall& call, const at::TensorOptions& type,
                             bool training) {
    const LmRowBatch batch{call.ids, call.targets, call.lengths};
    switch (call.gives) {
      case LmCall::Gives::kScores: {
        const TokenScores scores = mesh.parallel->scores(batch);
        return at::stack({scores.losses, scores.likeliest.to(at::kDouble)}, 1);
      }
      case LmCall::Gives::kLoss:
        if (at::GradMode::is_enabled()) return mesh.forward(batch, type, training);
        return at::full({}, mesh.parallel->evaluate(batch), type);
      case LmCall::Gives::kLogits:
        break;
    }
    throw InvalidArgument(
        "TransformerLm: this model is divided among ranks, which give losses and scores; put it "
        "together for its logits");
  }
  // The language model that the model is, of a type and a size that can be divided so. Sends
  // nothing.
  TransformerLmImpl& checked() const {
    auto* const lm = dynamic_cast<TransformerLmImpl*>(&model());
    if (lm == nullptr)
      throw InvalidArgument(
          "strategy " + name() +
          " divides a TransformerLm, and the model is another; give it data alone");
    for (const auto& [parameter, tensor] : parameters_of(*lm)) {
      if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kDouble)
        throw InvalidArgument("strategy " + name() + ": '" + parameter +
                              "' is neither float32 nor float64; convert the model, and put "
                              "autocast around its forward for bfloat16 products");
    }
    check(mesh_->how, lm->config(), comm().size());
    return *lm;
  }
  static LmMeshPtr alive(const std::weak_ptr<LmMesh>& weak) {
    auto mesh = weak.lock();
    if (!mesh)
      throw InvalidArgument("TransformerLm: the strategy that divided it is gone, and its parts");
    return mesh;
  }

  LmMeshPtr mesh_;
  const TransformerLmImpl* named_ = nullptr;  // has the hook
};

}  // namespace

std::shared_ptr<ParallelLm> parallel_lm_of(const Strategy& strategy) {
  const auto* const mesh = dynamic_cast<const LmMeshPlacement*>(&strategy.placement());
  return mesh == nullptr ? nullptr : mesh->parallel();
}

std::shared_ptr<Strategy> make_lm_mesh_strategy(Parallelism how, LmMeshOptions options) {
  const std::string name = how.zero > 0 ? "zero" + std::to_string(how.zero) : "ddp";
  const auto mesh = std::make_shared<LmMesh>(
      LmMesh{.how = std::move(how), .options = std::move(options), .name = name});
  return std::make_shared<Strategy>(Strategy::Parts{
      .name = name,
      .traits = {.has_whole_gradients = false, .divides_state = true, .divides_model = true},
      .gradients = std::make_unique<LmMeshGradients>(mesh),
      .state = std::make_unique<LmMeshState>(mesh),
      .placement = std::make_unique<LmMeshPlacement>(mesh)});
}

}  // namespace lockstep::inline v0
