// The strategies of this library.
#include <torch/nn/module.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <memory>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/stopwatch.h"
#include "lockstep/core/text.h"
#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/horovod/distributed_gradients.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/train/diloco_strategy.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/zero_strategy.h"

namespace lockstep::inline v0 {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

class DdpGradients final : public StrategyGradients {
 public:
  void bind() override {
    held_.reset();
    ddp_.reset();
    ddp_.emplace(shared_model(), comm(), DdpOptions{.init_sync = false});
  }
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

class AverageGradients final : public StrategyGradients {
 public:
  explicit AverageGradients(algorithms::AllReduce algorithm) : options_{.algorithm = algorithm} {}
  void synchronize() override {
    const Stopwatch watch(waiting_);
    average_gradients(model(), comm(), options_);
  }
  double waiting() const override { return waiting_; }

 private:
  AverageOptions options_;
  double waiting_ = 0;
};

class HorovodGradients final : public StrategyGradients {
 public:
  void bind() override {
    gradients_.reset();
    wrapped_.emplace("strategy horovod", parameters_of(model()));
    gradients_.emplace(parameters_of(model()), comm());
  }
  Tensors forward(int64_t /*rows*/, const std::function<Tensors()>& compute) override {
    if (at::GradMode::is_enabled()) wrapped_->check(model());
    return compute();
  }
  void communicate(bool on) override {
    if (!on)
      throw InvalidArgument(
          "strategy horovod: gradients are on their way before the caller says that they accumulate; "
          "accumulate with ddp, average or zero1");
  }
  void synchronize() override {
    const Stopwatch watch(waiting_);
    gradients_->synchronize();
  }
  double waiting() const override { return waiting_; }
  int64_t buffer_bytes() const { return gradients_ ? gradients_->buffer_bytes() : 0; }

 private:
  std::optional<flat::WrappedParameters> wrapped_;
  std::optional<DistributedGradients> gradients_;
  double waiting_ = 0;
};

class HorovodState final : public StrategyState {
 public:
  explicit HorovodState(const HorovodGradients& gradients) : gradients_(gradients) {}
  StepMemory planned_memory(const torch::optim::Optimizer& optimizer) const override {
    return with_buffers(StrategyState::planned_memory(optimizer));
  }
  StepMemory memory(torch::optim::Optimizer& optimizer) override {
    return with_buffers(StrategyState::memory(optimizer));
  }

 private:
  StepMemory with_buffers(StepMemory memory) const {
    memory.buffers += gradients_.buffer_bytes();
    return memory;
  }
  const HorovodGradients& gradients_;  // of the same strategy
};

class LogicalGradients final : public StrategyGradients {
 public:
  explicit LogicalGradients(int count) : count_(count) {}
  void bind() override {
    // Sums within an operation depend on how many threads share it.
    at::set_num_threads(1);
    ranks_.reset();
    ranks_.emplace(comm(), shared_model(), count_);  // compares and broadcasts
  }
  Tensors forward(int64_t /*rows*/, const std::function<Tensors()>& compute) override {
    return ranks().forward(compute);
  }
  void communicate(bool on) override {
    if (!on)
      throw InvalidArgument("strategy " + name() +
                            " has its batches of a step; take more logical ranks, or larger "
                            "batches, instead of accumulating");
  }
  // Training begins: whatever a former one has left in the midst of a step goes.
  void follow(std::function<int64_t()> /*batches_taken*/) override { ranks().leave_out(); }
  at::Tensor random_states() const override { return ranks().random_states(); }
  void set_random_states(const at::Tensor& all, const std::string& source) override {
    ranks().set_random_states(all, source);
  }
  double waiting() const override { return ranks_ ? ranks_->waiting() : 0; }

 protected:
  void backward(const at::Tensor& loss) override {
    ranks().backward(loss);
    if (ranks().complete()) ranks().synchronize();
  }
  void compute_in_vain(const std::function<at::Tensor()>& loss,
                       const std::function<void()>& done) override {
    // Without synchronize(), which would end the step: its streams and buffers could not go back.
    ranks().backward(loss());
    done();
    ranks().leave_out();
  }

 private:
  LogicalRanks& ranks() const {
    model();  // throws before set_up()
    return *ranks_;
  }

  int count_;
  mutable std::optional<LogicalRanks> ranks_;
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
  if (!options.copies.empty() && !divides_parameters(name))
    throw InvalidArgument("strategy '" + name +
                          "': copies of the parameters are for zero3 and fsdp");
  if (name == "diloco") return make_diloco_strategy(options.diloco.value_or(DiLoCoOptions{}));
  if (options.diloco)
    throw InvalidArgument("strategy '" + name + "': options of DiLoCo are for diloco");
  if (name == "zero3") return make_zero_strategy(3, /*units=*/false, options.copies);
  if (name == "fsdp") return make_zero_strategy(3, /*units=*/true, options.copies);
  const auto of = [&name](StrategyTraits traits, std::unique_ptr<StrategyGradients> gradients) {
    return std::make_shared<Strategy>(
        Strategy::Parts{.name = name, .traits = traits, .gradients = std::move(gradients)});
  };
  if (name == "ddp") return of({.rebinds = true}, std::make_unique<DdpGradients>());
  if (name == "horovod") {
    auto gradients = std::make_unique<HorovodGradients>();
    auto state = std::make_unique<HorovodState>(*gradients);
    return std::make_shared<Strategy>(Strategy::Parts{.name = name,
                                                      .traits = {.rebinds = true},
                                                      .gradients = std::move(gradients),
                                                      .state = std::move(state)});
  }
  for (const auto& [way, algorithm] : {std::pair{"average", AllReduce::kEngine},
                                       {"ring", AllReduce::kRing},
                                       {"naive-ring", AllReduce::kNaiveRing}})
    if (name == way) return of({.rebinds = true}, std::make_unique<AverageGradients>(algorithm));
  if (name == "zero") name = "zero1";
  for (const int stage : {1, 2})
    if (name == "zero" + std::to_string(stage)) return make_zero_strategy(stage);
  if (const auto count = logical_ranks_in(name)) {
    name = "logical" + std::to_string(*count);
    return of({.logical_ranks = *count, .rebinds = true},
              std::make_unique<LogicalGradients>(*count));
  }
  const auto& names = strategy_names();
  throw InvalidArgument("strategy '" + std::string(given) + "' is unknown; choose " +
                        joined(names) + ", diloco or logical8");
}

}  // namespace lockstep::inline v0
