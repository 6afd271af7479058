// Text from a language model, token by token: temperature, the k likeliest (Fan et al., arXiv:1805.04833),
// the likeliest of a total probability (nucleus, Holtzman et al., arXiv:1904.09751).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/model/transformer_lm.h"

namespace lockstep::inline v0 {

// How a token is chosen.
struct SamplingOptions {
  double temperature = 1;  // logits are divided by it; 0: always the likeliest token
  int64_t top_k = 0;       // only the likeliest so many; 0: all
  double top_p = 1;        // of these the fewest likeliest whose probabilities reach it
  uint64_t seed = 0;  // of the draws: the same tokens on every machine that computes these logits
};
// Throws InvalidArgument that names the first option that makes no sense.
LOCKSTEP_API void check(const SamplingOptions& options);

// Draws tokens, one from each row of logits after another.
class LOCKSTEP_API TokenSampler {
 public:
  // Throws as check().
  explicit TokenSampler(const SamplingOptions& options);
  // logits [B, vocabulary], of any device and floating type -> int64 [B], on the CPU. Throws
  // InvalidArgument for logits that are not numbers.
  at::Tensor draw(const at::Tensor& logits);

 private:
  int64_t draw_one(std::vector<std::pair<double, int64_t>>& likeliest);

  SamplingOptions options_;
  uint64_t drawn_ = 0;
};

// The options of generate().
struct GenerateOptions {
  int64_t max_new_tokens = 100;        // at most
  SamplingOptions sampling = {};       // of each token
  std::vector<int64_t> stop_ids = {};  // a text ends behind one of these
  // Where the model's positions end, it goes on from the latter half of the text, as if that were all;
  // false: the text ends there.
  bool beyond_positions = false;
  // Called with every token as it comes; false ends the text.
  std::function<bool(int64_t token)> on_token = {};
};

// The tokens that follow `prompt`, a stop among them. In evaluation mode and without gradients; the model
// is left in the mode it was found in. Throws InvalidArgument: an empty prompt, one that leaves no position
// (unless beyond_positions), options that make no sense.
LOCKSTEP_API std::vector<int64_t> generate(TransformerLm& model, const std::vector<int64_t>& prompt,
                                           const GenerateOptions& options);

}  // namespace lockstep::inline v0
