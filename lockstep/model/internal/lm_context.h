// A model of which each of several ranks computes some rows of a batch (hooks::TokenPart).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/model/internal/lm_nodes.h"
#include "lockstep/model/internal/lm_units.h"
#include "lockstep/model/transformer_lm.h"

namespace lockstep::inline v0::internal {

// The layout of this rank's rows of such sequences, and which rows those are.
struct ContextRows {
  CausalLayout layout;
  at::Tensor rows;  // int64, ascending
};
ContextRows context_layout(const hooks::TokenPart& part, const std::vector<int64_t>& lengths,
                           int64_t first_row);

// causal_attention() of this rank's rows.
at::Tensor context_attention(const at::Tensor& queries, const at::Tensor& keys,
                             const at::Tensor& values, const CausalHeads& heads, const LmPass& pass,
                             Arithmetic arithmetic);

// The mean over the ranks' targets of what `share` gives of this rank's: called with what it divides its sum by, 0 for
// its own number of targets where there are none at all. Value and gradient are TokenPart's.
at::Tensor whole_loss(const hooks::TokenPart& part, const at::Tensor& targets,
                      const std::function<at::Tensor(double divide_by)>& share);

// All ranks' rows in the batch's order, of this rank's [rows, columns]. In backward count() times this rank's rows.
at::Tensor gathered(const LmPass& pass, const at::Tensor& rows);

}  // namespace lockstep::inline v0::internal
