// ExponentialAverage: an exponential moving average of a model's parameters, which is often better
// on data that the model was not trained on than the parameters of any one step.
//
//   optim::ExponentialAverage average(parameters_of(model), {.decay = 0.999});
//   for (...) {
//     ...
//     optimizer.step();
//     average.update();
//   }
//   {
//     const auto averaged = average.in_model();  // evaluate or save here
//   }
//
// The first update copies the parameters p; a later one computes a <- a + (1 - decay) (p - a).
// These are the numbers of torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay).
// Kingma and Ba average parameters so ("Adam: A Method for Stochastic Optimization", ICLR 2015,
// section 7.2; they begin with zeros, and divide by 1 - decay^n), and Tarvainen and Valpola ("Mean
// teachers are better role models", NeurIPS 2017).
//
// Ranks whose parameters are equal have equal averages, so that nothing is sent. Where ranks divide
// or share one copy of the parameters (zero3, fsdp), it is not for use.
//
// Buffers, such as BatchNorm's running statistics, are left alone: while the average is in the
// model, they are those of the last step. AveragedModel does the same by default. Such statistics
// belong to the last parameters, not to the averaged ones; `averages_buffers` averages them too,
// as AveragedModel(use_buffers=True) does.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0::optim {

// How an ExponentialAverage weighs.
struct ExponentialAverageOptions {
  double decay = 0.999;  // of the former average in an update; 0 to less than 1
  // The n-th update after the first has a decay of at most (1 + n) / (10 + n), since the parameters
  // of the first steps are far from the later ones. So does TensorFlow's ExponentialMovingAverage
  // with num_updates.
  bool warm_up = false;
  // Whether the buffers of a module are averaged as well. Those of whole numbers, such as
  // BatchNorm's count of batches, have their last values, where torch would round an average down.
  // A list of tensors is averaged whole, whatever this says.
  bool averages_buffers = false;
};

// Below, the parameters are all tensors that are averaged, buffers included.
// Lifetime: it keeps the parameters' tensors, not the model. Optimizers and DDP may move their
// memory, as set_data() does.
// Thread-safety: one thread.
class LOCKSTEP_API ExponentialAverage {
 public:
  // A tensor that is there under several names counts once, under the first.
  // Throws: InvalidArgument for a decay that is out of range.
  explicit ExponentialAverage(const NamedTensors& parameters,
                              const ExponentialAverageOptions& options = {});
  // Averages the parameters of a module or a holder of one, and with averages_buffers its buffers.
  template <ModuleOrHolder M>
  explicit ExponentialAverage(const M& module, const ExponentialAverageOptions& options = {})
      : ExponentialAverage(options.averages_buffers ? state_of(module) : parameters_of(module),
                           options) {}
  ExponentialAverage(const ExponentialAverage&) = delete;
  ExponentialAverage& operator=(const ExponentialAverage&) = delete;

  // To be called after each optimizer step. The averages of 16-bit parameters are in float32, those
  // of whole numbers are the parameters themselves.
  // Throws: InvalidArgument while the average is in the model.
  void update();

  // While it exists, the model's parameters have the average's values.
  class [[nodiscard]] LOCKSTEP_API InModel {
   public:
    explicit InModel(ExponentialAverage& average);  // as in_model()
    ~InModel();                                     // puts the parameters back
    InModel(const InModel&) = delete;
    InModel& operator=(const InModel&) = delete;

   private:
    ExponentialAverage& average_;
  };
  // Takes memory for another copy of the parameters, for as long.
  // Throws: InvalidArgument before the first update, and while there is another one.
  InModel in_model() { return InModel(*this); }

  // The averages by name, in the model's order, without a copy; none before the first update.
  NamedTensors averages() const;
  // The parameters as training has them, likewise, also while the average is in the model.
  NamedTensors training_parameters() const;

  int64_t updates() const { return updates_; }  // so far
  // The averages' memory, also before the first update, which takes it.
  int64_t bytes() const;
  // The decay of the next update; 0 for the first one, which copies.
  double next_decay() const;

  // The averages and the number of updates, for a file (checkpoint/safetensors.h); views of the
  // averages' memory.
  // Throws: InvalidArgument before the first update.
  Safetensors state() const;
  // Continues from a state.
  // Throws: CheckpointError that begins with `source` and names the first tensor that is missing,
  // is left over, or has another shape or type; the average is then unchanged.
  void load(const Safetensors& state, const std::string& source);

 private:
  void put_back() noexcept;

  ExponentialAverageOptions options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> averages_;  // empty before the first update
  std::vector<at::Tensor> kept_;      // the parameters, while the average is in the model
  int64_t updates_ = 0;
};

}  // namespace lockstep::inline v0::optim
