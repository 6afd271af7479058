// LogicalRanks: training that ends in the same bits on 1, 2, 4, 8 ... ranks.
//
// A job of R logical ranks computes R batches a step, one for each, and adds their gradients along
// one fixed binary tree. N ranks share the logical ones: each computes R / N batches one after the
// other, adds them up along its subtree, and the ranks' sums come together along the rest of the
// tree. So every addition is made in the same order whatever N is: data, random streams and sums
// belong to the logical ranks, and only the time depends on how many ranks there are.
//
//   LogicalRanks logical(comm, model, 8);
//   for (int64_t i = 0; i < logical.own(); ++i) {         // batches of logical ranks first() + i
//     const at::Tensor loss = loss_of(logical.forward([&] { return model->forward(batch(i)); }));
//     logical.backward(loss);
//   }
//   logical.synchronize();                                // grad() is the mean of all R
//   optimizer.step();
//
// What it needs besides: the same number of threads on every number of ranks
// (at::set_num_threads()), the same processor, and nothing else that is random (in a loss, or where
// batches are made) or sums over ranks by itself, such as SyncBatchNorm. Every batch of a step finds
// the same buffers (BatchNorm's statistics), and those that logical rank 0 leaves remain.
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
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/parallel/logical/tree_sum.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// One thread, the communicator's. The model is on one device. Memory: a copy of the gradients, one more for each level
// of the own subtree, log2(own()), one more in synchronize() for several ranks; and of the buffers.
class LogicalRanks {
 public:
  // Rank 0's parameters and buffers go to all. The streams of the logical ranks are drawn from rank
  // 0's default CPU generator. `model` is kept. Collective. Throws InvalidArgument unless `count` is
  // a power of two and a multiple of the ranks, for a model on several devices, or where no parameter requires a
  // gradient; Mismatch where the ranks' models or counts differ.
  LogicalRanks(Communicator comm, std::shared_ptr<torch::nn::Module> model, int count);

  int count() const { return count_; }
  int64_t own() const { return static_cast<int64_t>(streams_.size()); }
  int64_t first() const { return comm_.rank() * own(); }

  // Runs `compute`, the module's forward on the next logical rank's batch: what it draws from CPU
  // generators by default comes from that one's stream, and what it draws from the device's, from a seed of it. Does not communicate. Throws InvalidArgument that
  // names a parameter which was added, replaced, unfrozen or converted since.
  std::vector<at::Tensor> forward(const std::function<std::vector<at::Tensor>()>& compute);
  // The backward of that forward: afterwards the gradients have left grad(). The step's first drops
  // the gradients of the step before, zero_grad() or not. Does not communicate.
  // Throws InvalidArgument for more backwards a step than own().
  void backward(const at::Tensor& loss);
  // Whether all of this rank's batches of the step have been through backward().
  bool complete() const { return done_ == own(); }
  // The mean of all logical ranks' gradients in grad(), valid until the next backward(); zeros for
  // parameters that none used. Buffers are logical rank 0's. Collective. Throws InvalidArgument
  // unless complete().
  void synchronize();
  // As if the step had not begun: gradients are dropped, buffers and streams are as they were. After
  // an exception within a step, on all ranks.
  void leave_out();

  // The streams of this rank's logical ranks, uint8 [own(), bytes], for a checkpoint; and those of
  // all, [count(), bytes], put back; or new ones, drawn from the first of another number of states.
  // Throws CheckpointError that begins with `source`; then they are as they were.
  at::Tensor random_states() const;
  void set_random_states(const at::Tensor& all, const std::string& source);

  // Seconds so far that synchronize() took.
  double waiting() const { return waiting_; }

 private:
  // The gradients of a dtype, one after the other.
  struct Flat {
    std::vector<at::Tensor> parameters;
    std::vector<int64_t> offsets;
    int64_t numel = 0;  // a multiple of the ranks
    TreeSum sum;
    at::Tensor mean;  // what grad() lies in after synchronize()
  };
  static at::Tensor place_in(const at::Tensor& memory, const Flat& flat, size_t i);
  at::Tensor leaf_of(Flat& flat);
  void drop_gradients();
  void end_step();

  Communicator comm_;
  std::shared_ptr<torch::nn::Module> model_;
  int count_;
  at::Device device_{at::kCPU};  // the model's
  std::vector<at::Generator> streams_;
  std::vector<Flat> flats_;
  flat::WrappedParameters wrapped_;
  NamedTensors buffers_;
  at::Tensor begun_;               // the streams' states as the step found them
  std::vector<at::Tensor> found_;  // likewise the buffers,
  std::vector<at::Tensor> left_;   // and as logical rank 0 left them
  int64_t done_ = 0;               // backwards of this step
  double waiting_ = 0;
};

}  // namespace lockstep
