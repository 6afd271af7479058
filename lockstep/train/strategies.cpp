// The strategies of this library.
#include <torch/nn/module.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/stopwatch.h"
#include "lockstep/core/text.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/parallel/ddp/average_gradients.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/horovod/distributed_gradients.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/train/strategy.h"

namespace lockstep {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

class DdpStrategy final : public Strategy {
 public:
  std::string name() const override { return "ddp"; }
  void bind(ModulePtr model, Communicator comm) override {
    held_.reset();
    ddp_.reset();
    keep(model, comm);
    ddp_.emplace(std::move(model), std::move(comm), DdpOptions{.init_sync = false});
  }
  bool rebinds() const override { return true; }
  Tensors forward(int64_t rows, const std::function<Tensors()>& compute) override {
    return ddp_->forward_by(rows, compute);
  }
  void communicate(bool on) override {
    held_.reset();
    if (!on) held_.emplace(ddp_->no_sync());
  }
  void follow(std::function<int64_t()> batches_taken) override {
    ddp_->follow(std::move(batches_taken));
  }
  double waiting() const override { return ddp_->times().waiting; }

 private:
  std::optional<DistributedDataParallel<ModulePtr>> ddp_;
  std::optional<NoSync> held_;
};

class AverageStrategy final : public Strategy {
 public:
  AverageStrategy(std::string name, algorithms::AllReduce algorithm)
      : name_(std::move(name)), options_{.algorithm = algorithm} {}
  std::string name() const override { return name_; }
  bool rebinds() const override { return true; }
  void synchronize() override {
    const Stopwatch watch(waiting_);
    average_gradients(model(), comm(), options_);
  }
  double waiting() const override { return waiting_; }

 private:
  std::string name_;
  AverageOptions options_;
  double waiting_ = 0;
};

class HorovodStrategy final : public Strategy {
 public:
  std::string name() const override { return "horovod"; }
  void bind(ModulePtr model, Communicator comm) override {
    gradients_.reset();
    keep(std::move(model), std::move(comm));
    wrapped_.emplace("strategy horovod", parameters_of(this->model()));
    gradients_.emplace(parameters_of(this->model()), this->comm());
  }
  Tensors forward(int64_t /*rows*/, const std::function<Tensors()>& compute) override {
    if (at::GradMode::is_enabled()) wrapped_->check(model());
    return compute();
  }
  bool rebinds() const override { return true; }
  void communicate(bool on) override {
    if (!on)
      throw InvalidArgument(
          "strategy horovod: gradients are on their way before anybody says that they accumulate; "
          "accumulate with ddp, average or zero1");
  }
  void synchronize() override {
    const Stopwatch watch(waiting_);
    gradients_->synchronize();
  }
  double waiting() const override { return waiting_; }

 private:
  std::optional<flat::WrappedParameters> wrapped_;
  std::optional<DistributedGradients> gradients_;
  double waiting_ = 0;
};

class ZeroStrategy final : public Strategy {
 public:
  // `units`: parameters are divided between hosts as well.
  explicit ZeroStrategy(int stage, bool units = false, std::vector<int> copies = {})
      : stage_(stage), units_(units), copies_(std::move(copies)) {}
  std::string name() const override { return units_ ? "fsdp" : "zero" + std::to_string(stage_); }
  void set_up(ModulePtr model, Communicator comm) override {
    if (divides(*model, comm)) {
      // The optimizer gives all ranks rank 0's values, a bucket at a time.
      keep_buffers(std::move(model), std::move(comm));
    } else {
      Strategy::set_up(model, std::move(comm));
    }
    initial_ = nullptr;  // values are there
  }
  bool divides(const torch::nn::Module& model, const Communicator& comm) const override {
    const bool units = units_ || stage_ == 3;
    return units && !comm.device().is_cpu() && comm.size() > 1 && !layers_of(model).empty();
  }
  bool has_parts() const override { return parts_; }
  // Each by itself: all have the same samples, so that they go through units in step.
  Communicator evaluation_ranks(const Communicator& comm) const override {
    return parts_ ? *Communicator(comm).split(comm.rank()) : comm;
  }
  std::set<std::string> divided_names() const override { return divided_; }
  SlicedTensors own_parameters() override { return made().own_parameters(); }
  void load_parameters(const SlicedTensors& values, const std::string& source) override {
    made().load_parameters(values, source);
  }
  NamedTensors gathered_parameters() override { return made().parameters_on_root(); }
  int64_t bytes_left(const std::function<std::shared_ptr<void>()>& forward) override {
    const int64_t bytes = Strategy::bytes_left(forward);
    if (parts_) made().forget_forwards();
    return bytes;
  }
  // Without values, until restore_share(): what an optimizer would begin with is not looked at.
  void bind(ModulePtr model, Communicator comm) override {
    held_.reset();
    optimizer_ = nullptr;
    wrapped_.reset();
    keep(std::move(model), std::move(comm));
    look_for_layers();
    initial_ = [](const std::string&, int64_t, const at::Tensor&) {};
  }
  bool has_shares() const override { return true; }
  int64_t share_bytes(torch::optim::Optimizer& optimizer) override {
    return dynamic_cast<ZeroOptimizer&>(optimizer).share_bytes();
  }
  void write_share(torch::optim::Optimizer& optimizer, const at::Tensor& into) override {
    dynamic_cast<ZeroOptimizer&>(optimizer).write_share(into);
  }
  void restore_share(torch::optim::Optimizer& optimizer, const at::Tensor& share) override {
    dynamic_cast<ZeroOptimizer&>(optimizer).restore_share(share);
  }
  void set_up_undrawn(ModulePtr model, Communicator comm, Initial initial) override {
    keep_buffers(std::move(model), std::move(comm));
    initial_ = std::move(initial);
  }
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
    const ZeroOptions options{.stage = stage_,
                              .accumulate = stage_ > 1,
                              .units = {.model = layered_},
                              .initial = initial_,
                              .copies = copies_};
    auto optimizer =
        std::make_unique<ZeroOptimizer>(comm(), std::move(trained), in_order, algorithm, options);
    divided_ = {in_order.begin(), in_order.end()};
    if (const Initial initial = std::exchange(initial_, nullptr); initial || parts_)
      fill_all_but_divided(initial);
    if (parts_) bring_the_rest();
    optimizer_ = optimizer.get();
    optimizers_life_ = optimizer->lifetime();
    wrapped_.emplace("strategy " + name(), parameters_of(model()));
    return optimizer;
  }
  Tensors forward(int64_t /*rows*/, const std::function<Tensors()>& compute) override {
    if (wrapped_ && at::GradMode::is_enabled()) wrapped_->check(model());
    return compute();
  }
  void check_optimizer(const torch::optim::Optimizer& optimizer) const override {
    if (dynamic_cast<const ZeroOptimizer*>(&optimizer) == nullptr)
      throw InvalidArgument("strategy " + name() +
                            " divides the optimizer's state, so it makes the optimizer itself: "
                            "strategy->make_optimizer(groups, options)");
  }
  // In stages 2 and 3 gradients add up in parts, or they would be whole on every rank meanwhile.
  void communicate(bool on) override {
    held_.reset();
    ZeroOptimizer& optimizer = made();
    if (!on && stage_ == 1) held_.emplace(optimizer.no_sync());
  }
  bool has_whole_gradients() const override { return false; }
  SlicedTensors optimizer_state(torch::optim::Optimizer& optimizer) override {
    return dynamic_cast<ZeroOptimizer&>(optimizer).own_state();
  }
  void load_optimizer_state(torch::optim::Optimizer& optimizer, const SlicedTensors& state,
                            const std::string& source) override {
    dynamic_cast<ZeroOptimizer&>(optimizer).load_state(state, source);
  }
  bool divides_state() const override { return true; }
  StepMemory planned_memory(const torch::optim::Optimizer& optimizer) const override {
    return with_others(dynamic_cast<const ZeroOptimizer&>(optimizer).planned_memory());
  }
  StepMemory memory(torch::optim::Optimizer& optimizer) override {
    return with_others(dynamic_cast<ZeroOptimizer&>(optimizer).memory());
  }
  std::shared_ptr<void> whole_parameters() override {
    if (!optimizers_life_.expired()) return optimizer_->whole_parameters();
    if (optimizer_ != nullptr && layered_)
      throw InvalidArgument("strategy " + name() +
                            ": the parameters went with the optimizer; save before it goes");
    return nullptr;
  }
  double waiting() const override {
    if (optimizers_life_.expired()) return 0;
    const ZeroTimes times = optimizer_->times();
    return times.waiting + times.gathering + times.fetching;
  }

 private:
  void keep_buffers(ModulePtr model, Communicator comm) {
    keep(std::move(model), std::move(comm));
    const NamedTensors buffers = to_named_tensors(this->model().named_buffers());
    check_same_on_all_ranks(this->comm(), buffers);  // parameters: make_optimizer()
    broadcast_tensors(this->comm(), buffers);
    look_for_layers();
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
  // A device has one rank's memory, so that stage 3 divides nothing there but units.
  void look_for_layers() {
    const bool units = units_ || (stage_ == 3 && !comm().device().is_cpu());
    layered_ = units && !layers_of(model()).empty() ? shared_model() : nullptr;
    parts_ = divides(model(), comm());
    if (!copies_.empty() && !comm().device().is_cpu() && !layered_)
      throw InvalidArgument("strategy " + name() +
                            ": on devices the ranks that share a copy divide its layers, and the "
                            "model has no list of layers that are Hookable; leave the mesh out");
  }
  // What the optimizer has not: frozen parameters, and those of no group. Without `initial` they have values.
  void fill_all_but_divided(const Initial& initial) {
    const at::NoGradGuard no_grad;
    NamedTensors others;
    for (const auto& [name, parameter] : parameters_of(model())) {
      if (divided_.contains(name)) continue;
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
  ZeroOptimizer& made() const {
    if (optimizers_life_.expired())
      throw InvalidArgument("strategy " + name() +
                            ": make_optimizer() comes before the first step");
    return *optimizer_;
  }

  int stage_;
  bool units_;
  std::vector<int> copies_;
  ModulePtr layered_;                   // whose layers are units
  bool parts_ = false;                  // has_parts()
  std::set<std::string> divided_;       // parameters that the optimizer has
  Initial initial_;                     // until there is an optimizer
  ZeroOptimizer* optimizer_ = nullptr;  // the caller's
  std::weak_ptr<const void> optimizers_life_;
  std::optional<flat::WrappedParameters> wrapped_;  // when the optimizer was made
  std::optional<ZeroOptimizer::NoSync> held_;
};

class LogicalStrategy final : public Strategy {
 public:
  explicit LogicalStrategy(int count) : count_(count) {}
  std::string name() const override { return "logical" + std::to_string(count_); }
  int64_t logical_ranks() const override { return count_; }
  void set_up(ModulePtr model, Communicator comm) override {
    bind(std::move(model), std::move(comm));
  }
  void bind(ModulePtr model, Communicator comm) override {
    // Sums within an operation depend on how many threads share it.
    at::set_num_threads(1);
    ranks_.reset();
    keep(model, comm);
    ranks_.emplace(std::move(comm), std::move(model), count_);  // compares and broadcasts
  }
  bool rebinds() const override { return true; }
  Tensors forward(int64_t /*rows*/, const std::function<Tensors()>& compute) override {
    return ranks().forward(compute);
  }
  void communicate(bool on) override {
    if (!on)
      throw InvalidArgument("strategy " + name() +
                            " has its batches of a step; take more logical ranks, or larger "
                            "batches, instead of accumulating");
  }
  void backward(const at::Tensor& loss) override {
    ranks().backward(loss);
    if (ranks().complete()) ranks().synchronize();
  }
  // Training begins: whatever a former one has left in the midst of a step goes.
  void follow(std::function<int64_t()> /*batches_taken*/) override { ranks().leave_out(); }
  at::Tensor random_states() const override {
    model();  // throws before set_up()
    return ranks_->random_states();
  }
  void set_random_states(const at::Tensor& all, const std::string& source) override {
    ranks().set_random_states(all, source);
  }
  double waiting() const override { return ranks_ ? ranks_->waiting() : 0; }

 private:
  LogicalRanks& ranks() {
    model();  // throws before set_up()
    return *ranks_;
  }

  int count_;
  std::optional<LogicalRanks> ranks_;
};

constexpr int kMostLogicalRanks = 4096;

// "logical8": 8.
std::optional<int> logical_ranks_in(std::string_view name) {
  constexpr std::string_view kPrefix = "logical";
  int count = 0;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kPrefix.size(), end, count);
  if (read.ec != std::errc() || read.ptr != end || count < 1 || count > kMostLogicalRanks ||
      !std::has_single_bit(static_cast<unsigned>(count)))
    throw InvalidArgument("strategy '" + std::string(name) +
                          "': give a power of two of logical ranks up to " +
                          std::to_string(kMostLogicalRanks) + ", such as logical8");
  return count;
}

}  // namespace

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names{"ddp",   "average", "ring",  "naive-ring", "horovod",
                                              "zero1", "zero2",   "zero3", "fsdp"};
  return names;
}

bool divides_parameters(std::string_view strategy) {
  return strategy == "zero3" || strategy == "fsdp";
}

std::shared_ptr<Strategy> make_strategy(std::string_view given, const StrategyOptions& options) {
  using algorithms::AllReduce;
  std::string name(given);
  std::replace(name.begin(), name.end(), '_', '-');
  if (name == "zero3") return std::make_shared<ZeroStrategy>(3, /*units=*/false, options.copies);
  if (name == "fsdp") return std::make_shared<ZeroStrategy>(3, /*units=*/true, options.copies);
  if (!options.copies.empty())
    throw InvalidArgument("strategy '" + name +
                          "': copies of the parameters are for zero3 and fsdp");
  if (name == "ddp") return std::make_shared<DdpStrategy>();
  if (name == "average") return std::make_shared<AverageStrategy>(name, AllReduce::kEngine);
  if (name == "ring") return std::make_shared<AverageStrategy>(name, AllReduce::kRing);
  if (name == "naive-ring") return std::make_shared<AverageStrategy>(name, AllReduce::kNaiveRing);
  if (name == "horovod") return std::make_shared<HorovodStrategy>();
  if (name == "zero") return std::make_shared<ZeroStrategy>(1);
  for (const int stage : {1, 2}) {
    if (name == "zero" + std::to_string(stage)) return std::make_shared<ZeroStrategy>(stage);
  }
  if (const auto count = logical_ranks_in(name)) return std::make_shared<LogicalStrategy>(*count);
  const auto& names = strategy_names();
  throw InvalidArgument("strategy '" + std::string(given) + "' is unknown; choose " +
                        joined(names) + " or logical8");
}

}  // namespace lockstep
