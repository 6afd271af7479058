// Muon for the matrices of hidden layers: Jordan et al., "Muon: An optimizer for hidden layers in
// neural networks" (2024), with the rate of Liu et al., "Muon is Scalable for LLM Training",
// arXiv:2502.16982.
//
// For each matrix x with gradient g:
//   m = momentum * m + (1 - momentum) * g
//   u = nesterov ? momentum * m + (1 - momentum) * g : m
//   o = u with its singular values near 1: five Newton-Schulz iterations
//   x = (1 - lr * weight_decay) * x - lr * factor(rows, columns) * o
//
// Like torch.optim.Muon, with the same defaults. Biases, norms, embeddings and the output layer
// need another optimizer (AdamW), with a step of its own.
#pragma once

#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/optimizer_kind.h"
#include "lockstep/core/export.h"
#include "lockstep/optim/fused_optimizer.h"

namespace lockstep::inline v0::optim {

// The factor of the rate for a matrix.
enum class MuonRate : uint8_t {
  kOriginal,    // factor sqrt(max(1, rows / columns))
  kMatchAdamW,  // 0.2 sqrt(max(rows, columns)): AdamW's rate and weight decay then fit
};

// SGD's options (dampening is 0) and Muon's own.
class LOCKSTEP_API MuonOptions : public torch::optim::SGDOptions {
 public:
  explicit MuonOptions(double rate = 1e-3) : SGDOptions(rate) {
    SGDOptions::momentum(0.95);
    SGDOptions::nesterov(true);
    SGDOptions::weight_decay(0.1);
  }
  // Get and set, as torch's options do.
  double momentum() const { return SGDOptions::momentum(); }
  MuonOptions& momentum(double value) { return SGDOptions::momentum(value), *this; }
  bool nesterov() const { return SGDOptions::nesterov(); }  // likewise
  MuonOptions& nesterov(bool value) { return SGDOptions::nesterov(value), *this; }
  double weight_decay() const { return SGDOptions::weight_decay(); }  // likewise
  MuonOptions& weight_decay(double value) { return SGDOptions::weight_decay(value), *this; }

  // Get and set the factor of the rate.
  MuonRate rate() const { return rate_; }
  MuonOptions& rate(MuonRate value) { return rate_ = value, *this; }
  int iterations() const { return iterations_; }  // of Newton and Schulz, for each step
  MuonOptions& iterations(int value) { return iterations_ = value, *this; }
  // The dtype in which the iterations compute.
  at::ScalarType dtype() const { return dtype_; }
  MuonOptions& dtype(at::ScalarType value) { return dtype_ = value, *this; }

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<MuonOptions>(*this);
  }

 private:
  MuonRate rate_ = MuonRate::kOriginal;
  int iterations_ = 5;
  at::ScalarType dtype_ = at::kBFloat16;
};

// State is SGD's momentum buffer, memory and errors as in adam.h; files name the optimizer "Muon".
class LOCKSTEP_API Muon : public FusedOptimizer<torch::optim::SGD, torch::optim::SGDOptions>,
                          public OptimizerKind {
 public:
  // Also throw InvalidArgument for a parameter without two dimensions, dampening, iterations
  // outside 1 to 99. Groups without options have the defaults; their options are MuonOptions.
  explicit Muon(std::vector<at::Tensor> parameters, const MuonOptions& options = MuonOptions());
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const MuonOptions& defaults = MuonOptions());

  using FusedOptimizer::step;
  StepResult step(const StepOptions& options) override;
  std::string kind() const override { return "Muon"; }
};

// For code that keeps the state elsewhere: the step of one matrix, in place. All have the same
// sizes; `momentum` holds zeros before the first step. `gradient` is first divided by `divisor`, if
// there is one.
LOCKSTEP_API void muon_update(const at::Tensor& weight, const at::Tensor& gradient,
                              const at::Tensor& momentum, const MuonOptions& options,
                              const std::optional<at::Tensor>& divisor);

// Throw InvalidArgument for options out of range, and for a parameter that Muon does not support,
// under this name.
LOCKSTEP_API void check(const MuonOptions& options);
LOCKSTEP_API void check_muon_parameter(const at::Tensor& parameter, const std::string& name);

}  // namespace lockstep::inline v0::optim
