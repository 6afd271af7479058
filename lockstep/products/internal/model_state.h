// The state of a ParallelModel.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/flat/named_tensors.h"
#include "lockstep/products/parallel_model.h"
#include "lockstep/shard/context_scope.h"

namespace lockstep::inline v0 {

namespace internal {
// Lists the parameters; a tensor with two names is in it once.
NamedTensors parameters_once(const torch::nn::Module& model);
}  // namespace internal

struct ParallelModel::State {
  State(std::shared_ptr<torch::nn::Module> given, Forward given_forward, Communicator given_comm,
        const Parallelism& given_how, const ModelPlan& given_plan,
        const ParallelModelOptions& given_options);

  bool has_stages() const { return how.size_of("pipe") > 1; }
  bool has_style(TensorStyle style) const;
  // While the result lives, attention looks at the tokens of all ranks along context. Null: all
  // tokens are here.
  std::unique_ptr<ContextScope> attention() const;
  // This rank's rows of a row's batch; all of it where rows begin, or end, within the model.
  at::Tensor own_inputs(const at::Tensor& inputs) const;
  at::Tensor own_targets(const at::Tensor& targets) const;
  // The loss of outputs for own_targets(), as its part of the mean over `all` targets of the row;
  // the mean over the ranks along context is the row's loss.
  at::Tensor share_of_loss(const at::Tensor& outputs, const at::Tensor& own, double all) const;
  double count(const at::Tensor& targets) const;

  // The results of the example, with gradients. run_divided_model() also keeps the rows between the
  // divided model's units.
  struct Expected {
    at::Tensor outputs;
    std::map<std::string, at::Tensor> gradients;
  };
  Expected run_whole_model();
  // Checks that parts of a batch may be counted one by one.
  void check_loss(const at::Tensor& outputs) const;
  at::Tensor run_divided_model();
  void check_against(const Expected& expected, const TensorParts& parts);

  void share_start();  // rank 0's values everywhere
  // Moves the whole model's values for the example and returns the former ones; restore_values()
  // puts this rank's slices of these back.
  NamedTensors move_values();
  void restore_values(const NamedTensors& values, const TensorParts& parts);
  void set_training(bool training);  // except modules that were in evaluation mode
  void forget_other_stages();
  std::vector<DividedParameter> own_parameters(const TensorParts& parts) const;
  std::vector<PipelineChunk> chunks();
  PipelineBatch batch_of(const at::Tensor& inputs, const at::Tensor& targets, double scale);
  double mean_over_context(double loss) const;

  Communicator comm;
  std::shared_ptr<torch::nn::Module> model;
  Forward forward;
  ParallelModelOptions options;
  TensorPlan plan;
  torch::nn::Sequential units{nullptr};  // null: the model is one unit
  std::string unit_names;                // precedes a unit's number in names of parameters
  Parallelism how;
  PipelineSchedule schedule;
  std::map<std::string, int> stage_of;                                      // of each parameter
  bool drops = false;                                                       // some module does
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> trains;  // parents first
  Mesh mesh;
  std::vector<PipelineRows> between;  // chunks
  std::optional<DividedParameters> divided;
  std::optional<Pipeline> pipeline;
};

}  // namespace lockstep::inline v0
