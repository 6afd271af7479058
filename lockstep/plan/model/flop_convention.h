// How published FLOP figures are counted. The same run has, by convention, figures that differ by a third, so a
// column of TFLOP/s is compared only under its own convention. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/model/model_shape.h"

namespace lockstep::inline v0::plan {

// FLOPs of a token = per_parameter * parameters + scores * layers * heads * channels of a head * sequence; twice the
// multiplications.
struct FlopConvention {
  std::string name = {};
  double per_parameter =
      6;  // 2 forward, 4 backward; 8 with a second forward; 4 without gradients of weights
  double scores = 12;  // of the products of attention; 6: the half that a causal mask leaves
  bool embeddings =
      true;  // the input embeddings count, although they are looked up; a tied head counts always
  bool recomputed =
      false;  // what a full recomputation adds counts, where the layout has one: x 4/3
  std::string used_by = {};  // who counts so
};

// "6n", "6n+attention" (llm-foundry, PaLM's MFU), "6n+causal", "nemo" (without the input embeddings), "bridge" (the
// same with the causal half), "lora" (4n), "megatron" (arXiv:2104.04473: with the recomputation).
LOCKSTEP_API const std::vector<FlopConvention>& flop_conventions();
// Throws InvalidArgument with the nearest name.
LOCKSTEP_API const FlopConvention& flop_convention(std::string_view name);

// FLOPs of a token in a sequence of `sequence` tokens, forward and backward. `recomputes`: the run computes
// all activations twice, which counts where the convention says so. Experts count as far as a token passes them.
LOCKSTEP_API double flops_per_token(const ModelShape& model, int64_t sequence,
                                    const FlopConvention& convention, bool recomputes = false);

}  // namespace lockstep::inline v0::plan
