#include "lockstep/model/internal/undrawn.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "lockstep/kernels/normal.h"

namespace lockstep::inline v0::internal {

// Made small, whose few numbers are quick to draw, and enlarged then. (An embedding that is given
// its weight would share it with its clones.)
torch::nn::Linear undrawn_linear(int64_t inputs, int64_t outputs, bool bias) {
  torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(bias));
  linear->options = torch::nn::LinearOptions(inputs, outputs).bias(bias);
  linear->weight.set_data(at::empty({outputs, inputs}, at::kFloat));
  if (bias) linear->bias.set_data(at::empty({outputs}, at::kFloat));
  return linear;
}

torch::nn::Embedding undrawn_embedding(int64_t rows, int64_t width) {
  torch::nn::Embedding embedding(1, 1);
  embedding->options = torch::nn::EmbeddingOptions(rows, width);
  embedding->weight.set_data(at::empty({rows, width}, at::kFloat));
  return embedding;
}

std::vector<uint64_t> draw_seeds(int64_t count, const std::optional<at::Generator>& generator) {
  at::Tensor drawn = at::empty({count}, at::kLong);
  drawn.random_(generator);
  const auto* const first = drawn.const_data_ptr<int64_t>();
  return {first, first + count};
}

void draw_normal(at::Tensor& weight, double deviation) {
  if (!weight.is_cpu() || weight.scalar_type() != at::kFloat || !weight.is_contiguous()) {
    weight.normal_(0, deviation);
    return;
  }
  kernels::fill_normal(weight.mutable_data_ptr<float>(), weight.numel(), draw_seeds(1)[0],
                       static_cast<float>(deviation), at::get_num_threads());
}

}  // namespace lockstep::inline v0::internal
