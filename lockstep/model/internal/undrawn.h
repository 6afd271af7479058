// Random numbers by counting (kernels/), and modules without torch's own random start, for models
// that draw theirs so or load it: drawing twice is most of the time that a large model needs to
// start.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::inline v0::internal {

// Weights and bias are memory as it comes.
torch::nn::Linear undrawn_linear(int64_t inputs, int64_t outputs, bool bias = true);
torch::nn::Embedding undrawn_embedding(int64_t rows, int64_t width);

// Seeds from the default generator, by an operation: so torch::manual_seed, a checkpoint's random
// state and DataParallel's generators hold for what is counted from them too.
std::vector<uint64_t> draw_seeds(int64_t count,
                                 const std::optional<at::Generator>& generator = std::nullopt);

// Draws from a normal distribution around 0. On the CPU in float32 by all of ATen's threads, from
// one of draw_seeds() (kernels/normal.h); elsewhere as torch's normal_().
void draw_normal(at::Tensor& weight, double deviation);

}  // namespace lockstep::inline v0::internal
