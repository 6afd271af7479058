// The memory of an optimizer's parameters: flat buffers, one per group, dtype and device, with
// those of the state.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::inline v0::optim::internal {

// For messages: "parameter 3 of group 0".
std::string place(size_t group, int64_t index);

// A parameter's place.
struct Slot {
  at::Tensor param;   // the module's tensor, whose memory is in the block
  int64_t index = 0;  // in its group, for messages
  int64_t offset = 0;
  int64_t numel = 0;
};

struct Block {
  size_t group = 0;
  int64_t numel = 0;  // padding included
  std::vector<Slot> slots;
  at::Tensor weights;
  std::vector<at::Tensor> states;  // allocated at the first use
  at::Tensor gradients;            // undefined without flat gradients

  // A one-dimensional stretch of one of the buffers.
  static at::Tensor stretch(const at::Tensor& buffer, int64_t offset, int64_t numel) {
    return buffer.narrow(0, offset, numel);
  }
  // A slot's part of one of the buffers, with the parameter's sizes and strides; not a view for
  // autograd.
  static at::Tensor shaped(const at::Tensor& buffer, const Slot& slot);
  const at::Tensor& state(size_t which);
};

class FlatGroups {
 public:
  // Moves the parameters. Throws InvalidArgument, before anything has moved, as described in
  // adam.h.
  FlatGroups(const std::vector<torch::optim::OptimizerParamGroup>& groups, bool flat_gradients);

  // Adds new groups. Throws InvalidArgument where a group's list of parameters has changed, or a
  // parameter no longer lies in its place.
  void follow(const std::vector<torch::optim::OptimizerParamGroup>& groups);

  std::vector<Block>& blocks() { return blocks_; }
  bool flat_gradients() const { return flat_gradients_; }
  // Zeroes the flat gradients and sets them as the parameters' grad().
  void zero_gradients();

 private:
  void add_group(size_t group, const std::vector<at::Tensor>& parameters);
  void check_new(const std::vector<torch::optim::OptimizerParamGroup>& groups, size_t first) const;

  bool flat_gradients_;
  std::vector<size_t> group_sizes_;
  std::vector<Block> blocks_;
};

// Gives each of an optimizer's groups the very options that it was made with, and returns the
// groups. libtorch (2.13) puts the optimizer's defaults in place of every value that equals its
// class's own default, so that a group's weight decay of 0 would be lost.
std::vector<torch::optim::OptimizerParamGroup>& keep_options(
    std::vector<torch::optim::OptimizerParamGroup>& groups,
    const std::vector<torch::optim::OptimizerParamGroup>& given);

}  // namespace lockstep::inline v0::optim::internal
