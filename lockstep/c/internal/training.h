// Training: the steps of a model on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/c/internal/loss.h"
#include "lockstep/c/internal/script_model.h"
#include "lockstep/c/model.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0::c_api {

class Training {
 public:
  // `model` must outlive it.
  // Collective: all ranks construct it.
  // Throws: InvalidArgument for an option or a model without parameters to train, and Mismatch on
  // the other ranks; Mismatch for ranks with different models or options.
  Training(ScriptModel& model, Communicator comm, const lockstep_training_options* options);
  // For a rank that has no model: the others, which construct theirs, get the Mismatch of a rank
  // that cannot start. Throws nothing; the caller says what was wrong.
  // Collective, with the constructor.
  static void leave_out(Communicator& comm) noexcept;
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Makes the tensors of a step. It may throw: the other ranks then learn of it, and none waits.
  using Batch = std::function<std::vector<at::Tensor>()>;
  // As lockstep_model_train_step() and lockstep_model_evaluate() describe them.
  double step(const Batch& inputs, const Batch& targets);
  double evaluate(const Batch& inputs, const Batch& targets);
  void set_learning_rate(double rate);
  int64_t steps() const { return steps_; }

  // The optimizer's state by the model's names, and back.
  // Throws: CheckpointError that begins with `source`; the optimizer is then unchanged.
  SlicedTensors optimizer_state() const;
  void restore(const SlicedTensors& state, int64_t steps, const std::string& source);

  // Each rank runs `fn`. Returns once all have succeeded.
  // Collective: all ranks call it.
  // Throws: the rank's own error; `other`, which gets its text, where another rank's `fn` threw.
  void together(const std::function<void()>& fn,
                const std::function<void(const std::string&)>& other);
  Communicator& comm() { return comm_; }

 private:
  struct Part;
  struct Whole;
  Part compute(const Batch& inputs, const Batch& targets);
  Whole exchange(const Part& part);
  void backward(const Part& part, double weight);
  double learning_rate() const;

  ScriptModel& model_;
  Communicator comm_;
  NamedTensors trained_;
  std::vector<at::Tensor> parameters_;  // of trained_
  Loss loss_;
  double max_norm_ = 0;
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  int64_t steps_ = 0;
};

}  // namespace lockstep::inline v0::c_api
