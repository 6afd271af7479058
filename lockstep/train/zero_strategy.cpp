#include "lockstep/train/zero_strategy.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep::inline v0 {
namespace {

// What the three parts share.
struct Zero {
  std::string name;
  int stage = 1;
  bool units = false;
  std::vector<int> copies;

  std::shared_ptr<torch::nn::Module> layered = nullptr;  // whose layers are units
  std::set<std::string> divided = {};                    // parameters that the optimizer has
  Strategy::Initial initial = nullptr;                   // until there is an optimizer
  ZeroOptimizer* optimizer = nullptr;                    // the caller's
  std::weak_ptr<const void> optimizers_life = {};
  std::optional<flat::WrappedParameters> wrapped = {};  // when the optimizer was made
  std::optional<ZeroOptimizer::NoSync> held = {};

  bool alive() const { return !optimizers_life.expired(); }
  ZeroOptimizer& made() const {
    if (!alive())
      throw InvalidArgument("strategy " + name + ": make_optimizer() comes before the first step");
    return *optimizer;
  }
};
using ZeroPtr = std::shared_ptr<Zero>;

class ZeroGradients final : public StrategyGradients {
 public:
  explicit ZeroGradients(ZeroPtr zero) : zero_(std::move(zero)) {}
  Tensors forward(int64_t /*rows*/, const std::function<Tensors()>& compute) override {
    if (zero_->wrapped && at::GradMode::is_enabled()) zero_->wrapped->check(model());
    return compute();
  }
  // In stages 2 and 3 gradients add up in parts, or they would be whole on every rank meanwhile.
  void communicate(bool on) override {
    zero_->held.reset();
    ZeroOptimizer& optimizer = zero_->made();
    if (!on && zero_->stage == 1) zero_->held.emplace(optimizer.no_sync());
  }
  bool counts_grad() const override { return false; }
  double waiting() const override {
    if (!zero_->alive()) return 0;
    const ZeroTimes times = zero_->optimizer->times();
    return times.waiting + times.gathering + times.fetching;
  }

 protected:
  void compute_in_vain(const std::function<at::Tensor()>& loss,
                       const std::function<void()>& done) override {
    compute(loss);
    done();
    zero_->made().synchronize();
    zero_->made().leave_out();
    if (traits().has_parts) zero_->made().forget_forwards();
  }

 private:
  ZeroPtr zero_;
};

class ZeroState final : public StrategyState, public StateShares {
 public:
  explicit ZeroState(ZeroPtr zero) : zero_(std::move(zero)) {}
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      std::vector<torch::optim::OptimizerParamGroup> groups,
      const optim::Algorithm& algorithm) override {
    std::map<const c10::TensorImpl*, std::string> names;
    for (const auto& [name, tensor] : parameters_of(model()))
      names.emplace(tensor.unsafeGetTensorImpl(), name);
    std::vector<std::string> in_order;
    std::vector<torch::optim::OptimizerParamGroup> trained;
    for (auto& group : groups) {
      std::erase_if(group.params(), [](const at::Tensor& p) { return !p.requires_grad(); });
      if (group.params().empty()) continue;
      for (const at::Tensor& p : group.params()) in_order.push_back(names[p.unsafeGetTensorImpl()]);
      trained.push_back(std::move(group));
    }
    const ZeroOptions options{.stage = zero_->stage,
                              .accumulate = zero_->stage > 1,
                              .units = {.model = zero_->layered},
                              .initial = zero_->initial,
                              .copies = zero_->copies};
    auto optimizer =
        std::make_unique<ZeroOptimizer>(comm(), std::move(trained), in_order, algorithm, options);
    zero_->divided = {in_order.begin(), in_order.end()};
    if (const auto initial = std::exchange(zero_->initial, nullptr); initial || traits().has_parts)
      fill_all_but_divided(initial);
    if (traits().has_parts) bring_the_rest();
    zero_->optimizer = optimizer.get();
    zero_->optimizers_life = optimizer->lifetime();
    zero_->wrapped.emplace("strategy " + name(), parameters_of(model()));
    return optimizer;
  }
  void check_optimizer(const torch::optim::Optimizer& optimizer) const override {
    if (!zero_->alive() || &optimizer != zero_->optimizer)
      throw InvalidArgument("strategy " + name() +
                            " divides the optimizer's state, so it makes the optimizer itself: "
                            "strategy->state().make_optimizer(groups, options)");
  }
  SlicedTensors optimizer_state(torch::optim::Optimizer& /*optimizer*/) override {
    return zero_->made().own_state();
  }
  NamedTensors gathered_parameters() override {
    if (!traits().has_parts) return StrategyState::gathered_parameters();
    NamedTensors all = zero_->made().parameters_on_root();
    if (comm().rank() == 0) {
      const NamedTensors others = all_but_divided();
      all.insert(all.end(), others.begin(), others.end());
    }
    return all;
  }

  StateShares* shares() override { return this; }
  int64_t bytes() override { return zero_->made().share_bytes(); }
  void write(const at::Tensor& into) override { zero_->made().write_share(into); }
  void restore(const at::Tensor& share) override { zero_->made().restore_share(share); }

  StepMemory planned_memory(const torch::optim::Optimizer& /*optimizer*/) const override {
    return with_others(zero_->made().planned_memory());
  }
  StepMemory memory(torch::optim::Optimizer& /*optimizer*/) override {
    return with_others(zero_->made().memory());
  }

 protected:
  void load_optimizer_state(torch::optim::Optimizer& /*optimizer*/, const SlicedTensors& state,
                            const std::string& source) override {
    zero_->made().load_state(state, source);
  }
  void share_parameters(Checkpoint& checkpoint) override {
    if (!traits().has_parts) return StrategyState::share_parameters(checkpoint);
    checkpoint.model_slices = zero_->made().own_parameters();
    if (comm().rank() == 0) checkpoint.model.tensors = all_but_divided();
  }
  void load_parameters(const Checkpoint& checkpoint, const std::string& source) override {
    if (!traits().has_parts) return StrategyState::load_parameters(checkpoint, source);
    const SlicedTensors& stored = checkpoint.model_slices;
    zero_->made().load_parameters(stored, source);
    const at::NoGradGuard no_grad;
    const NamedTensors others = all_but_divided();
    for (const auto& [name, tensor] : others) {
      const SlicedTensor* const found = stored.find(name);
      if (found == nullptr || tensor.sizes() != at::IntArrayRef(found->sizes))
        throw CheckpointError(source + ": has no tensor '" + name + "' of the model's shape");
    }
    for (const auto& [name, tensor] : others) tensor.copy_(stored.find(name)->whole());
  }

 private:
  // The module's own tensors that the optimizer has not.
  NamedTensors all_but_divided() const {
    NamedTensors others = module_state(model());
    std::erase_if(others, [&](const auto& entry) { return zero_->divided.contains(entry.first); });
    return others;
  }
  // To the device, where the optimizer has brought what it has.
  void bring_the_rest() {
    const at::NoGradGuard no_grad;
    const auto bring = [device = comm().device()](at::Tensor& tensor) {
      if (tensor.device() != device) tensor.set_data(tensor.to(device));
    };
    for (at::Tensor& parameter : model().parameters()) bring(parameter);
    for (at::Tensor& buffer : model().buffers()) bring(buffer);
  }
  // What the optimizer has not: frozen parameters, and those of no group. Without `initial` they
  // have values.
  void fill_all_but_divided(const Strategy::Initial& initial) {
    const at::NoGradGuard no_grad;
    NamedTensors others;
    for (const auto& [name, parameter] : parameters_of(model())) {
      if (zero_->divided.contains(name)) continue;
      if (initial) initial(name, 0, parameter.view(-1));
      others.emplace_back(name, parameter);
    }
    check_same_on_all_ranks(comm(), others);
    broadcast_tensors(comm(), others);
  }
  // What is not trained is this rank's own.
  StepMemory with_others(const ZeroMemory& zero) const {
    StepMemory memory{.parameters = zero.parameters,
                      .gradients = zero.gradients,
                      .state = zero.state + zero.masters,
                      .buffers = zero.buffers + zero.units};
    for (const at::Tensor& parameter : model().parameters()) {
      if (!parameter.requires_grad()) memory.parameters += static_cast<int64_t>(parameter.nbytes());
    }
    return memory;
  }

  ZeroPtr zero_;
};

class ZeroPlacement final : public StrategyPlacement {
 public:
  explicit ZeroPlacement(ZeroPtr zero) : zero_(std::move(zero)) {}
  void set_up(const Strategy::Initial& initial) override {
    if (initial || divides(model(), comm())) {
      // The optimizer gives all ranks the parameters, or rank 0's, a bucket at a time.
      const NamedTensors buffers = to_named_tensors(model().named_buffers());
      check_same_on_all_ranks(comm(), buffers);
      broadcast_tensors(comm(), buffers);
    } else {
      StrategyPlacement::set_up(nullptr);
    }
    begin(initial);
  }
  // Without values, until StateShares::restore(): what an optimizer would begin with is not looked
  // at.
  void bind() override {
    begin([](const std::string&, int64_t, const at::Tensor&) {});
  }
  bool divides(const torch::nn::Module& model, const Communicator& comm) const override {
    const bool units = zero_->units || zero_->stage == 3;
    return units && !comm.device().is_cpu() && comm.size() > 1 && !layers_of(model).empty();
  }
  // Each by itself: all have the same samples, so that they go through units in step.
  Communicator evaluation_ranks(const Communicator& comm) const override {
    return traits().has_parts ? *Communicator(comm).split(comm.rank()) : comm;
  }
  std::shared_ptr<void> whole_parameters() override {
    if (zero_->alive()) return zero_->optimizer->whole_parameters();
    if (zero_->optimizer != nullptr && zero_->layered)
      throw InvalidArgument("strategy " + name() +
                            ": the parameters went with the optimizer; save before it goes");
    return nullptr;
  }

 private:
  void begin(const Strategy::Initial& initial) {
    zero_->held.reset();
    zero_->optimizer = nullptr;
    zero_->wrapped.reset();
    zero_->initial = initial;
    // A device has one rank's memory, so that stage 3 divides nothing there but units.
    const bool on_device = !comm().device().is_cpu();
    const bool units = zero_->units || (zero_->stage == 3 && on_device);
    zero_->layered = units && !layers_of(model()).empty() ? shared_model() : nullptr;
    traits().has_parts = divides(model(), comm());
    if (!zero_->copies.empty() && on_device && !zero_->layered)
      throw InvalidArgument("strategy " + name() +
                            ": on devices the ranks that share a copy divide its layers, and the "
                            "model has no list of layers that are Hookable; leave the mesh out");
  }

  ZeroPtr zero_;
};

}  // namespace

std::shared_ptr<Strategy> make_zero_strategy(int stage, bool units, std::vector<int> copies) {
  const auto zero =
      std::make_shared<Zero>(Zero{.name = units ? "fsdp" : "zero" + std::to_string(stage),
                                  .stage = stage,
                                  .units = units,
                                  .copies = std::move(copies)});
  return std::make_shared<Strategy>(
      Strategy::Parts{.name = zero->name,
                      .traits = {.has_whole_gradients = false, .divides_state = true},
                      .gradients = std::make_unique<ZeroGradients>(zero),
                      .state = std::make_unique<ZeroState>(zero),
                      .placement = std::make_unique<ZeroPlacement>(zero)});
}

}  // namespace lockstep::inline v0
