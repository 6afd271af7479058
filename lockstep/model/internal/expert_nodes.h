// Rows on their way to experts and back, and experts' products, as nodes with backwards written by hand; or, for
// other devices and types, of libtorch's operations. The same bits in every run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/model/internal/lm_nodes.h"
#include "lockstep/model/router.h"

namespace lockstep::inline v0::internal {

// Rows of tokens, [tokens, width] -> those that experts compute, [rows, width].
at::Tensor sorted_rows(const at::Tensor& x, const std::shared_ptr<const RoutedRows>& routed,
                       Arithmetic arithmetic);
// The way back: for each token the sum of its choices' rows times their weights, in the order of its choices.
// weights float32 (float64 for float64) [tokens, chosen]; what was left out adds nothing.
at::Tensor weighted_rows(const at::Tensor& rows, const at::Tensor& weights,
                         const std::shared_ptr<const RoutedRows>& routed, Arithmetic arithmetic);

// products() of rows that lie expert by expert, counts[e] of expert e: weights[i][e] [outputs, inputs] is the i-th
// product's for expert e. An expert without rows gets zeros as gradients, so that all ranks' parameters have some.
std::vector<at::Tensor> grouped_products(const at::Tensor& x, const std::vector<int64_t>& counts,
                                         const std::vector<std::vector<at::Tensor>>& weights,
                                         Arithmetic arithmetic,
                                         std::shared_ptr<DeferredGradients> deferred = nullptr);

}  // namespace lockstep::inline v0::internal
