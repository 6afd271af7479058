// LogicalRanks: training with the same result, bit for bit, on 1, 2, 4, 8 ... ranks.
//
// A job of R logical ranks computes R batches per step, one for each, and adds their gradients
// along one fixed binary tree. N ranks share the logical ones: each computes R / N batches one
// after another, adds them along its subtree, and the ranks' sums are combined along the rest of
// the tree. Every addition is therefore made in the same order for every N: data, random streams
// and sums belong to the logical ranks, and only the time depends on the number of ranks.
//
//   LogicalRanks logical(comm, model, 8);
//   for (int64_t i = 0; i < logical.own(); ++i) {         // batches of logical ranks first() + i
//     const at::Tensor loss = loss_of(logical.forward([&] { return model->forward(batch(i)); }));
//     logical.backward(loss);
//   }
//   logical.synchronize();                                // grad() is the mean of all R
//   optimizer.step();
//
// It also requires the same number of threads on every number of ranks (at::set_num_threads()), the
// same processor, and nothing else that is random (in a loss, or where batches are made) or sums
// over ranks by itself, such as SyncBatchNorm. Every batch of a step starts with the same buffers
// (BatchNorm's statistics), and those of logical rank 0 are kept.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/parallel/logical/tree_sum.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0 {

// The model is on one device.
// Thread-safety: the communicator's thread only.
// Cost: memory for a copy of the gradients, one more for each level of the own subtree,
// log2(own()), and one more in synchronize() for several ranks; and for a copy of the buffers.
class LOCKSTEP_API LogicalRanks {
 public:
  // Copies rank 0's parameters and buffers to all. The streams of the logical ranks are derived
  // from rank 0's default CPU generator. `model` is kept.
  // Collective: all ranks call it.
  // Throws: InvalidArgument unless `count` is a power of two and a multiple of the ranks, for a
  // model on several devices, or where no parameter requires a gradient; Mismatch where the ranks'
  // models or counts differ.
  LogicalRanks(Communicator comm, std::shared_ptr<torch::nn::Module> model, int count);

  int count() const { return count_; }  // of all logical ranks
  // How many this rank computes.
  int64_t own() const { return static_cast<int64_t>(streams_.size()); }
  int64_t first() const { return comm_.rank() * own(); }  // the number of its first

  // Runs `compute`, the module's forward on the next logical rank's batch: default CPU generators
  // use that rank's stream, and the device's generator uses a seed from it. Does not communicate.
  // Throws: InvalidArgument that names a parameter that was added, replaced, unfrozen or converted
  // since.
  std::vector<at::Tensor> forward(const std::function<std::vector<at::Tensor>()>& compute);
  // The backward of that forward: afterwards the gradients have been moved out of grad(). The first
  // one of a step drops the gradients of the previous step, with or without zero_grad(). Does not
  // communicate.
  // Throws: InvalidArgument for more backwards per step than own().
  void backward(const at::Tensor& loss);
  // Whether backward() has been called for all of this rank's batches of the step.
  bool complete() const { return done_ == own(); }
  // Puts the mean of all logical ranks' gradients into grad(), valid until the next backward();
  // zeros for parameters that none used. Buffers become logical rank 0's.
  // Collective: all ranks call it.
  // Throws: InvalidArgument unless complete().
  void synchronize();
  // Abandons the step: drops gradients and restores buffers and streams. Called on all ranks, after
  // an exception within a step.
  void leave_out();

  // The streams of this rank's logical ranks, uint8 [own(), bytes], for a checkpoint. The setter
  // restores those of all, [count(), bytes], or derives new ones from the first of another number
  // of states.
  // Throws: the setter throws CheckpointError that begins with `source`; the streams are then
  // unchanged.
  at::Tensor random_states() const;
  void set_random_states(const at::Tensor& all, const std::string& source);

  // Seconds that synchronize() has taken so far.
  double waiting() const { return waiting_; }

 private:
  // The gradients of a dtype, one after another.
  struct Flat {
    std::vector<at::Tensor> parameters;
    std::vector<int64_t> offsets;
    int64_t numel = 0;  // a multiple of the ranks
    TreeSum sum;
    at::Tensor mean;  // the memory of grad() after synchronize()
  };
  static at::Tensor place_in(const at::Tensor& memory, const Flat& flat, size_t i);
  at::Tensor leaf_of(Flat& flat);
  void drop_gradients();
  void end_step();

  Communicator comm_;
  std::shared_ptr<torch::nn::Module> model_;
  int count_;
  at::Device device_{at::kCPU};  // the model's device
  std::vector<at::Generator> streams_;
  std::vector<Flat> flats_;
  flat::WrappedParameters wrapped_;
  NamedTensors buffers_;
  at::Tensor begun_;               // the streams' states at the start of the step
  std::vector<at::Tensor> found_;  // the buffers at the start of the step,
  std::vector<at::Tensor> left_;   // and after logical rank 0
  int64_t done_ = 0;               // backwards of this step
  double waiting_ = 0;
};

}  // namespace lockstep::inline v0
