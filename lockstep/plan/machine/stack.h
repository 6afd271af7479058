// Stack: what a training software reaches on a machine, in a few shares that mean something by themselves. Published
// rows differ by their software as much as by their machine, so the two are told apart. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/machine/machine.h"
#include "lockstep/plan/machine/measured_parts.h"

namespace lockstep::inline v0::plan {

struct LOCKSTEP_API Stack {
  std::string name = "lockstep";
  // Products of matrices reach this share of the peak where they are large.
  double matrix = 0.75;
  // Rows, columns or inner elements at which a product reaches half of that, each by itself: x / (x + half).
  double half = 128;
  // The same share for attention's two products in one kernel.
  double attention = 0.5;
  // Attention is one kernel; otherwise the scores are written, and read again some times.
  bool fused_attention = true;
  // Kernels that only move memory reach this share of its bandwidth, and move each element of a layer this many
  // times what operators.h counts, which is everything fused as far as it can be.
  double memory = 0.8;
  double passes = 1;
  // Collectives reach this share of the links' bandwidth.
  double links = 0.8;
  // This share of what can be hidden is: the averages of gradients and the gathers of parameters behind computation,
  // and the collectives of tensor behind products.
  double overlap = 0.9;
  double tensor_overlap = 0;
  // The share by which a step takes longer for every doubling of the ranks: the slowest of many.
  double straggling = 0;
  // By how much ranks are apart after they have computed for t seconds: a standard deviation of jitter * sqrt(t)
  // (late_rank.h). In square roots of seconds.
  double jitter = 0;
  // Seconds of a layer's forward and backward of a micro-batch that nothing above counts: the host that launches it,
  // and waits for numbers of tokens.
  double host = 0;
  // Memory: what a rank holds beside tensors (the driver, libraries, buffers of collectives), in bytes.
  double fixed_bytes = 0;
  // Where rows are divided along tensor, those that are gathered before a product stay whole for its backward; false:
  // they are gathered again.
  bool keeps_gathered = true;
  // Bytes per output of the head while the loss is computed: its copies and its gradient.
  double logit_bytes = 10;
  // The model is TransformerLm (lockstep/model), and what it keeps beside the inputs of its products is known: attention's
  // output by heads and by rows, statistics of norms and attention, routing; a loss that has the logits of some rows at a
  // time and computes the head's gradient in the forward; messages of a pipeline. logit_bytes are then of those rows.
  bool own_model = false;
  // Memory the allocator keeps beyond what is asked of it, as a share of what changes in a step.
  double fragmentation = 0;
  // The ranks of a host that compute on its processors have one copy of the parameters where ZeRO divides anything:
  // none is gathered inside of a host.
  bool shares_parameters = false;
  // Parts of a step that were measured in float32: their rooflines are multiplied by these factors.
  std::vector<MeasuredPart> measured = {};
  std::string source = {};  // what it was fitted to

  bool operator==(const Stack&) const = default;
};

// "lockstep", and those of the published rows: "megatron-2021", "megatron-2022", "nemo", "bridge", "llm-foundry", ...
LOCKSTEP_API const std::vector<std::string>& stack_names();
// Throws InvalidArgument with the nearest name.
LOCKSTEP_API const Stack& known_stack(std::string_view name);

// As of a machine.
LOCKSTEP_API Stack stack_from_json(std::string_view text, const std::string& source);
LOCKSTEP_API std::string to_json(const Stack& stack);

}  // namespace lockstep::inline v0::plan
