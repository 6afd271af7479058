#include "lockstep/model/internal/embedding_node.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/model/internal/layer_math.h"

namespace lockstep::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_index(const at::Tensor& index, const at::Tensor& table, const char* name) {
  const auto* const at = index.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < index.numel(); ++i)
    if (at[i] < 0 || at[i] >= table.size(0))
      throw InvalidArgument("BertClassifier: " + std::string(name) + " " + std::to_string(at[i]) +
                            " is outside of the table's 0 to " + std::to_string(table.size(0) - 1));
}

at::Tensor sum_of_rows(const EmbeddingParameters& p, const EmbeddingPlan& plan) {
  const int64_t rows = plan.words.numel(), width = p.words.size(1);
  const at::Tensor result = empty_rows(rows, width, at::kFloat);
  const std::array<const float*, 3> tables{p.words.const_data_ptr<float>(),
                                           p.positions.const_data_ptr<float>(),
                                           p.types.const_data_ptr<float>()};
  const std::array<const int64_t*, 3> indices{plan.words.const_data_ptr<int64_t>(),
                                              plan.positions.const_data_ptr<int64_t>(),
                                              plan.types.const_data_ptr<int64_t>()};
  float* const to = result.mutable_data_ptr<float>();
  kernels::in_parallel(rows, kRowsAtATime, at::get_num_threads(), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const word = tables[0] + indices[0][r] * width;
      const float* const position = tables[1] + indices[1][r] * width;
      const float* const type = tables[2] + indices[2][r] * width;
      float* const out = to + r * width;
      for (int64_t c = 0; c < width; ++c) out[c] = word[c] + type[c] + position[c];
    }
  });
  return result;
}

// Rows are added to their places one after another; threads share the columns.
at::Tensor table_gradient(const at::Tensor& rows, const at::Tensor& index, int64_t count,
                          int64_t padding) {
  constexpr int64_t kColumns = 256;
  const int64_t width = rows.size(1);
  const at::Tensor result = at::zeros({count, width}, at::kFloat);
  float* const to = result.mutable_data_ptr<float>();
  const float* const from = rows.const_data_ptr<float>();
  const auto* const places = index.const_data_ptr<int64_t>();
  const int threads = at::get_num_threads();
  kernels::in_parallel(width, threads > 1 ? kColumns : width, threads,
                       [&](int64_t begin, int64_t end) {
                         for (int64_t r = 0; r < index.numel(); ++r) {
                           if (places[r] == padding) continue;
                           float* const out = to + places[r] * width;
                           for (int64_t c = begin; c < end; ++c) out[c] += from[r * width + c];
                         }
                       });
  return result;
}

kernels::Norm norm_of(const at::Tensor& sum, const at::Tensor& gamma, const at::Tensor& beta,
                      const EmbeddingPlan& plan) {
  kernels::Norm n;
  n.width = sum.size(1);
  n.type = plan.in_bfloat16 ? kernels::Type::kBFloat16 : kernels::Type::kFloat32;
  n.residual = sum.const_data_ptr<float>();
  n.gamma = gamma.const_data_ptr<float>();
  n.beta = beta.const_data_ptr<float>();
  n.epsilon = static_cast<float>(plan.epsilon);
  n.after = plan.dropout;
  return n;
}

struct EmbeddingHolder : torch::CustomClassHolder {
  EmbeddingHolder(std::shared_ptr<const EmbeddingPlan> the_plan, std::array<int64_t, 3> the_rows)
      : plan(std::move(the_plan)), table_rows(the_rows) {}
  std::shared_ptr<const EmbeddingPlan> plan;
  std::array<int64_t, 3> table_rows;
};

class EmbeddingNode : public torch::autograd::Function<EmbeddingNode> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& words,
                               const at::Tensor& positions, const at::Tensor& types,
                               const at::Tensor& gamma, const at::Tensor& beta,
                               const std::shared_ptr<const EmbeddingPlan>& plan) {
    const at::Tensor sum = sum_of_rows({words, positions, types, gamma, beta}, *plan);
    const Normed normed =
        norm_rows(norm_of(sum, gamma, beta, *plan), sum.size(0), plan->in_bfloat16);
    context->save_for_backward({sum, gamma, beta, normed.statistics});
    context->saved_data["plan"] = c10::IValue::make_capsule(c10::make_intrusive<EmbeddingHolder>(
        plan, std::array<int64_t, 3>{words.size(0), positions.size(0), types.size(0)}));
    context->set_materialize_grads(false);
    if (plan->in_bfloat16) return {normed.y, normed.rounded};
    return {normed.y};
  }

  static variable_list backward(AutogradContext* context, variable_list dy) {
    refuse_second_gradient("BertClassifier");
    const auto kept = context->get_saved_variables();
    const auto holder = c10::static_intrusive_pointer_cast<EmbeddingHolder>(
        context->saved_data["plan"].toCapsule());
    const EmbeddingPlan& plan = *holder->plan;
    for (at::Tensor& gradient : dy)
      if (gradient.defined()) gradient = gradient.contiguous();
    const NormBackward norm =
        norm_rows_backward(norm_of(kept[0], kept[1], kept[2], plan), kept[3], dy[0],
                           plan.in_bfloat16 ? dy[1] : at::Tensor(), {}, /*has_x=*/false);
    const auto table = [&](size_t i, const at::Tensor& index, int64_t padding) {
      return context->needs_input_grad(i)
                 ? table_gradient(norm.dz, index, holder->table_rows[i], padding)
                 : at::Tensor();
    };
    return {table(0, plan.words, plan.padding),
            table(1, plan.positions, -1),
            table(2, plan.types, -1),
            norm.dgamma,
            norm.dbeta,
            at::Tensor()};
  }
};

}  // namespace

LayerRows embeddings(const EmbeddingParameters& p,
                     const std::shared_ptr<const EmbeddingPlan>& plan) {
  check_index(plan->words, p.words, "token id");
  check_index(plan->types, p.types, "token type");
  const variable_list result =
      EmbeddingNode::apply(p.words, p.positions, p.types, p.gamma, p.beta, plan);
  return {result[0], plan->in_bfloat16 ? result[1] : at::Tensor()};
}

}  // namespace lockstep::internal
