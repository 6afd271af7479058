// What tests of divided language models compare with one process.
#pragma once

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <string>

#include "lockstep/model/transformer_lm.h"

namespace lockstep::inline v0::testing {

// The same on all ranks that are threads of one process.
inline TransformerLm made(const LmConfig& config, at::ScalarType type = at::kDouble) {
  torch::manual_seed(3);
  TransformerLm lm(config);
  const at::NoGradGuard no_grad;  // biases of 0 and norms of 1 would hide what is left out
  for (at::Tensor& parameter : lm->parameters())
    if (parameter.dim() == 1) parameter.add_(torch::randn_like(parameter), 0.2);
  lm->to(type);
  return lm;
}

// Of the greatest of b, or of `least`.
inline double difference(const at::Tensor& a, const at::Tensor& b, double least = 1e-30) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (a.numel() == 0) return 0;
  const double most = b.abs().max().item<double>();
  return (a - b).abs().max().item<double>() / std::max(most, least);
}

using Values = std::map<std::string, at::Tensor>;
inline Values values_of(const TransformerLm& lm) {
  Values values;
  for (const auto& item : lm->named_parameters())
    values[item.key()] = item.value().detach().clone();
  return values;
}
// Of the parameters that have one.
inline Values gradients_of(const TransformerLm& lm) {
  Values values;
  for (const auto& item : lm->named_parameters())
    if (item.value().grad().defined()) values[item.key()] = item.value().grad().clone();
  return values;
}

}  // namespace lockstep::inline v0::testing
