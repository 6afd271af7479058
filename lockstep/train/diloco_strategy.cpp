#include "lockstep/train/diloco_strategy.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/named_optimizer_state.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/stopwatch.h"
#include "lockstep/flat/distinct_tensors.h"
#include "lockstep/parallel/ddp/average_parameters.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char *kFile = "diloco", *kRanks = "ranks";
constexpr std::string_view kOwn = "own.", kInner = "inner.";

std::string file_of(int64_t rank) {
  return kFile + ("-rank-" + std::to_string(rank));
}

// The tensors with such names, without the prefix.
NamedTensors with_prefix(const Safetensors& file, std::string_view prefix) {
  NamedTensors found;
  for (const auto& [name, tensor] : file.tensors)
    if (name.starts_with(prefix)) found.emplace_back(name.substr(prefix.size()), tensor);
  return found;
}

// Averages tensors of floating point over the ranks; of others all get rank 0's. Collective.
void make_average(const NamedTensors& tensors, Communicator& comm) {
  NamedTensors averaged, others;
  for (const auto& entry : tensors)
    (entry.second.is_floating_point() ? averaged : others).push_back(entry);
  const at::NoGradGuard no_grad;
  average_parameters(averaged, comm);
  broadcast_tensors(comm, others);
}

// What the three parts share.
struct Outer {
  explicit Outer(DiLoCoOptions o) : options(std::move(o)) {}

  DiLoCoOptions options;
  std::optional<DiLoCo> optimizer = {};
  NamedTensors own = {};                  // this rank's, while the average is in the model
  std::weak_ptr<void> average_held = {};  // by its owner there
  double waiting = 0;
};
using OuterPtr = std::shared_ptr<Outer>;

// While it exists, the model is the ranks' average.
class AverageInModel {
 public:
  AverageInModel(const NamedTensors& tensors, Communicator& comm, OuterPtr outer)
      : tensors_(tensors), outer_(std::move(outer)) {
    const at::NoGradGuard no_grad;
    NamedTensors own;
    for (const auto& [name, tensor] : tensors_) own.emplace_back(name, tensor.detach().clone());
    outer_->own = std::move(own);
    try {
      make_average(tensors_, comm);
    } catch (...) {
      put_back();
      throw;
    }
  }
  ~AverageInModel() { put_back(); }
  AverageInModel(const AverageInModel&) = delete;
  AverageInModel& operator=(const AverageInModel&) = delete;

 private:
  void put_back() {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].second.copy_(outer_->own[i].second);
    outer_->own.clear();
  }

  NamedTensors tensors_;
  OuterPtr outer_;
};

class DiLoCoGradients final : public StrategyGradients {
 public:
  explicit DiLoCoGradients(OuterPtr outer) : outer_(std::move(outer)) {}
  double waiting() const override { return outer_->waiting; }

 private:
  OuterPtr outer_;
};

class DiLoCoState final : public StrategyState {
 public:
  explicit DiLoCoState(OuterPtr outer) : outer_(std::move(outer)) {}
  // All ranks get rank 0's parameters here.
  void bind() override { outer_->optimizer.emplace(model(), comm(), outer_->options); }

  bool step(torch::optim::Optimizer& optimizer, const StrategyStep& options) override {
    if (!StrategyState::step(optimizer, options)) return false;
    const Stopwatch watch(outer_->waiting);
    if (made().step()) make_average(buffers_of(model()), comm());
    return true;
  }

  Checkpoint share(torch::optim::Optimizer& optimizer) override {
    const bool within = made().inner_steps() > 0;
    if (within && outer_->own.empty())
      throw InvalidArgument("strategy " + name() +
                            ": within a period each rank has parameters of its own; save under "
                            "placement().as_saved(), which averages them");
    Checkpoint checkpoint = StrategyState::share(optimizer);
    const int rank = comm().rank();
    if (rank == 0) {
      Safetensors& state = checkpoint.tensors[kFile];
      state = {.tensors = made().state(), .metadata = {{kRanks, std::to_string(comm().size())}}};
      sort_by_name(&state.tensors);
    }
    Safetensors mine;
    for (const auto& [name, tensor] : outer_->own)
      mine.tensors.emplace_back(std::string(kOwn) + name, tensor);
    if (rank != 0) {
      SlicedTensors state(lockstep::optimizer_state(optimizer));
      if (const auto names = parameter_names(model(), optimizer))
        state = by_name(std::move(state), *names);
      const Safetensors inner = state.whole();
      for (const auto& [name, tensor] : inner.tensors)
        mine.tensors.emplace_back(std::string(kInner) + name, tensor);
      mine.metadata = inner.metadata;
    }
    sort_by_name(&mine.tensors);
    if (rank != 0 || !mine.tensors.empty()) checkpoint.tensors[file_of(rank)] = std::move(mine);
    return checkpoint;
  }

  void load(torch::optim::Optimizer* optimizer, const Checkpoint& checkpoint,
            const std::string& source, CheckpointParts parts) override {
    const auto state = checkpoint.tensors.find(kFile);
    if (parts == CheckpointParts::kModelAndConfig || state == checkpoint.tensors.end()) {
      StrategyState::load(optimizer, checkpoint, source, parts);
      made().begin_anew();
      return;
    }
    const std::string file = source + "/" + kFile + ".safetensors";
    const auto found = state->second.metadata.find(kRanks);
    const auto ranks =
        found == state->second.metadata.end() ? std::nullopt : parse_int(found->second, 1);
    if (!ranks) throw CheckpointError(file + ": does not say of how many ranks it is");
    const at::Tensor* const steps = state->second.find("steps");
    const bool within =
        steps != nullptr && steps->numel() > 0 && steps->view({-1})[0].item<int64_t>() > 0;
    // Looked for on every rank, so that all ranks throw.
    for (int64_t r = 0; r < *ranks; ++r)
      if ((within || r > 0) && !checkpoint.tensors.contains(file_of(r)))
        throw CheckpointError(source + ": has no " + file_of(r) + ".safetensors");
    const int64_t recorded = comm().rank() % *ranks;
    if (recorded == 0) {
      StrategyState::load(optimizer, checkpoint, source, parts);
    } else {
      const Safetensors& mine = checkpoint.tensors.at(file_of(recorded));
      Checkpoint with_own = checkpoint;
      with_own.optimizer =
          Safetensors{.tensors = with_prefix(mine, kInner), .metadata = mine.metadata};
      StrategyState::load(optimizer, with_own, source, parts);
    }
    try {
      if (*ranks == comm().size() && within)
        go_on_within(state->second, checkpoint.tensors.at(file_of(recorded)));
      else
        go_on_together(state->second);
    } catch (const InvalidArgument& error) {
      throw CheckpointError(file + ": " + error.what());
    }
  }

  StepMemory planned_memory(const torch::optim::Optimizer& optimizer) const override {
    return with_outer(StrategyState::planned_memory(optimizer));
  }
  StepMemory memory(torch::optim::Optimizer& optimizer) override {
    return with_outer(StrategyState::memory(optimizer));
  }

 protected:
  // Into the model itself: no average is held while a checkpoint is read.
  void load_parameters(const Checkpoint& checkpoint, const std::string& source) override {
    set_module_state(model(), checkpoint.model.tensors, source);
  }

 private:
  DiLoCo& made() const {
    model();  // throws before set_up()
    return *outer_->optimizer;
  }
  // From the file of as many ranks, each where it stood.
  void go_on_within(const Safetensors& state, const Safetensors& mine) {
    NamedTensors parameters, buffers = with_prefix(mine, kOwn);
    for (const auto& [name, parameter] : distinct_tensors(parameters_of(model()))) {
      const auto own = std::find_if(buffers.begin(), buffers.end(),
                                    [&name](const auto& entry) { return entry.first == name; });
      if (own == buffers.end()) continue;  // load_state() names it
      parameters.push_back(*own);
      buffers.erase(own);
    }
    made().load_state(state.tensors, parameters);
    set_module_state(distinct_tensors(buffers_of(model())), buffers, "this rank's own buffers");
  }
  // All from the ranks' average, which is in the model by now, and which ends the period.
  void go_on_together(const Safetensors& state) {
    made().load_state(state.tensors, distinct_tensors(parameters_of(model())));
    if (made().inner_steps() > 0) made().outer_step();
  }
  StepMemory with_outer(StepMemory memory) const {
    memory.state += made().bytes();
    return memory;
  }

  OuterPtr outer_;
};

class DiLoCoPlacement final : public StrategyPlacement {
 public:
  explicit DiLoCoPlacement(OuterPtr outer) : outer_(std::move(outer)) {}
  // The parameters are compared and sent by DiLoCo itself.
  void set_up(const Initial& initial) override {
    const at::NoGradGuard no_grad;
    if (initial)
      for (const auto& [name, parameter] : parameters_of(model()))
        initial(name, 0, parameter.view(-1));
    const NamedTensors buffers = buffers_of(model());
    check_same_on_all_ranks(comm(), buffers);
    broadcast_tensors(comm(), buffers);
  }
  std::shared_ptr<void> whole_parameters() override {
    if (!outer_->optimizer || outer_->optimizer->inner_steps() == 0) return nullptr;
    if (auto held = outer_->average_held.lock()) return held;
    const std::shared_ptr<void> average =
        std::make_shared<AverageInModel>(distinct_tensors(state_of(model())), comm(), outer_);
    outer_->average_held = average;
    return average;
  }
  // whole_parameters() averages them; training goes on with each rank's own.
  void share_buffers() override {}

 private:
  OuterPtr outer_;
};

}  // namespace

std::shared_ptr<Strategy> make_diloco_strategy(const DiLoCoOptions& options) {
  const auto outer = std::make_shared<Outer>(options);
  return std::make_shared<Strategy>(
      Strategy::Parts{.name = "diloco",
                      .traits = {.trains_apart = true},
                      .gradients = std::make_unique<DiLoCoGradients>(outer),
                      .state = std::make_unique<DiLoCoState>(outer),
                      .placement = std::make_unique<DiLoCoPlacement>(outer)});
}

}  // namespace lockstep::inline v0
