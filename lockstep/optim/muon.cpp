#include "lockstep/optim/muon.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/norm.h>

#include <algorithm>
#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/optim/internal/fused_engine.h"

namespace lockstep::inline v0::optim {
namespace {

constexpr double kSmallest = 1e-7;  // lower bound of the norm that a matrix is divided by
// The coefficients of the quintic with the greatest slope at 0 (Jordan et al.).
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

class MuonStateKind final : public internal::StateKind {
 public:
  size_t count(const torch::optim::OptimizerOptions&) const override { return 1; }
  std::unique_ptr<torch::optim::OptimizerParamState> make() const override {
    return std::make_unique<torch::optim::SGDParamState>();
  }
  at::Tensor& tensor(torch::optim::OptimizerParamState& state, size_t) const override {
    return static_cast<torch::optim::SGDParamState&>(state).momentum_buffer();
  }
};

std::vector<torch::optim::OptimizerParamGroup> with_options(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, const MuonOptions& defaults) {
  std::vector<torch::optim::OptimizerParamGroup> result;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto* own = groups[g].has_options()
                          ? dynamic_cast<const MuonOptions*>(&groups[g].options())
                          : &defaults;
    if (own == nullptr)
      throw InvalidArgument("Muon: the options of group " + std::to_string(g) +
                            " are another optimizer's");
    check(*own);
    for (size_t i = 0; i < groups[g].params().size(); ++i)
      check_muon_parameter(groups[g].params()[i],
                           "Muon: " + internal::place(g, static_cast<int64_t>(i)));
    result.emplace_back(groups[g].params(), own->clone());
  }
  return result;
}

// Returns `matrix` with its singular values near 1.
at::Tensor orthogonalized(const at::Tensor& matrix, const MuonOptions& options) {
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(options.dtype(), /*non_blocking=*/false, /*copy=*/true);
  if (tall) x = x.t();
  x.div_(x.norm().clamp_min_(kSmallest));
  for (int i = 0; i < options.iterations(); ++i) {
    const at::Tensor gram = x.mm(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kB, kC), x, kA);
  }
  return tall ? x.t() : x;
}

double factor_of(const at::Tensor& weight, MuonRate rate) {
  const auto rows = static_cast<double>(weight.size(0)),
             columns = static_cast<double>(weight.size(1));
  return rate == MuonRate::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                     : 0.2 * std::sqrt(std::max(rows, columns));
}

}  // namespace

void check(const MuonOptions& options) {
  if (options.dampening() != 0) throw InvalidArgument("Muon: dampening is not part of it");
  if (options.iterations() < 1 || options.iterations() > 99)
    throw InvalidArgument("Muon: iterations is " + std::to_string(options.iterations()) +
                          ", it must be 1 to 99");
}

void check_muon_parameter(const at::Tensor& parameter, const std::string& name) {
  if (parameter.dim() == 2) return;
  throw InvalidArgument(name + " has " + std::to_string(parameter.dim()) +
                        " dimension(s); Muon takes matrices of hidden layers, give the others to "
                        "AdamW");
}

void muon_update(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& momentum,
                 const MuonOptions& options, const std::optional<at::Tensor>& divisor) {
  const at::NoGradGuard no_grad;
  if (divisor) gradient.div_(divisor->to(gradient.scalar_type()));
  momentum.lerp_(gradient, 1 - options.momentum());
  const at::Tensor update =
      options.nesterov() ? gradient.lerp(momentum, options.momentum()) : momentum;
  weight.mul_(1 - options.lr() * options.weight_decay());
  weight.add_(orthogonalized(update, options).to(weight.scalar_type()),
              -options.lr() * factor_of(weight, options.rate()));
}

Muon::Muon(std::vector<at::Tensor> parameters, const MuonOptions& options)
    : Muon({torch::optim::OptimizerParamGroup(std::move(parameters))}, options) {}

Muon::Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups,
           const MuonOptions& defaults)
    : FusedOptimizer(with_options(groups, defaults), defaults) {}

StepResult Muon::step(const StepOptions& options) {
  static const MuonStateKind kind;
  return internal::fused_step(
      *this, flat(), left_out(), kind, options,
      [](internal::Launch& launch) {
        const auto& own = static_cast<const MuonOptions&>(*launch.options);
        for (size_t i = 0; i < launch.weights.size(); ++i) {
          const at::Tensor& like = launch.parameters[i];
          const auto shaped = [&like](const at::Tensor& stretch) {
            return stretch.as_strided(like.sizes(), like.strides(), stretch.storage_offset());
          };
          muon_update(shaped(launch.weights[i]), shaped(launch.gradients[i]),
                      shaped(launch.states[0][i]), own, launch.divisor);
        }
      },
      {.one_parameter_a_stretch = true, .takes_found_inf = false});
}

}  // namespace lockstep::inline v0::optim
