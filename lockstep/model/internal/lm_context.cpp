#include "lockstep/model/internal/lm_context.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/model/internal/layer_math.h"

namespace lockstep::inline v0::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kTurnedRows = 64;  // shared among threads in pieces of so many

struct TurnWork : torch::CustomClassHolder {
  int64_t heads = 1, width = 0;
  std::shared_ptr<const CausalLayout> layout;
  RotaryTable rotary;
};

// Rows of heads, turned by their positions, as rows: a sequence of its own each for the kernel, which lays out by
// heads what it is given of one.
at::Tensor turn_rows(const TurnWork& work, const at::Tensor& x, bool back) {
  const int64_t rows = x.size(0), columns = work.heads * work.width;
  const at::Tensor y = empty_rows(rows, columns, x.scalar_type());
  kernels::Rotary rotary;
  rotary.type = kernel_type(x.scalar_type());
  rotary.heads = work.heads;
  rotary.width = work.width;
  rotary.pitch = columns;
  rotary.cosines = work.rotary.cosines.const_data_ptr<float>();
  rotary.sines = work.rotary.sines.const_data_ptr<float>();
  const auto* const positions = work.layout->positions.const_data_ptr<int64_t>();
  const auto* const from = static_cast<const char*>(x.const_data_ptr());
  auto* const to = static_cast<char*>(y.mutable_data_ptr());
  const auto bytes = columns * static_cast<int64_t>(x.element_size());
  const auto kernel = back ? kernels::kernels().rotate_back : kernels::kernels().rotate;
  kernels::in_parallel(rows, kTurnedRows, at::get_num_threads(), [&](int64_t begin, int64_t end) {
    kernels::Rotary mine = rotary;
    for (int64_t row = begin; row < end; ++row) {
      mine.positions = positions + row;
      kernel(mine, from + row * bytes, to + row * bytes, 1, 0, 1);
    }
  });
  return y;
}

class TurnNode final : public torch::autograd::Function<TurnNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<TurnWork>& work) {
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    return turn_rows(*work, x.contiguous(), false);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_gradient("TransformerLm");
    const auto capsule = context->saved_data["work"].toCapsule();
    return {turn_rows(static_cast<const TurnWork&>(*capsule), gradients[0].contiguous(), true),
            at::Tensor()};
  }
};

// [rows, heads * width] -> [rows, heads, width].
at::Tensor turned(const at::Tensor& x, int64_t heads, int64_t width, const LmPass& pass,
                  Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kComposed)
    return rotated(x, heads, pass.layout->positions, pass.rotary).transpose(0, 1).contiguous();
  auto work = c10::make_intrusive<TurnWork>();
  work->heads = heads;
  work->width = width;
  work->layout = pass.layout;
  work->rotary = pass.rotary;
  return TurnNode::apply(x, work).view({x.size(0), heads, width});
}

// A number that stands for another one, whose gradient it passes on.
class WholeLossNode final : public torch::autograd::Function<WholeLossNode> {
 public:
  static at::Tensor forward(AutogradContext*, const at::Tensor& share, const at::Tensor& whole) {
    return whole.reshape({}).to(share.options(), /*non_blocking=*/false, /*copy=*/true);
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};

struct GatherWork : torch::CustomClassHolder {
  std::shared_ptr<const hooks::TokenPart> part;
  std::vector<int64_t> lengths;
  at::Tensor rows;
};

class GatherNode final : public torch::autograd::Function<GatherNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const c10::intrusive_ptr<GatherWork>& work) {
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    return work->part->gather(rows, work->lengths);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["work"].toCapsule();
    const auto& work = static_cast<const GatherWork&>(*capsule);
    const at::Tensor rows = device::copy_to(work.rows, gradients[0].device());
    return {gradients[0].index_select(0, rows) * static_cast<double>(work.part->count()),
            at::Tensor()};
  }
};

}  // namespace

ContextRows context_layout(const hooks::TokenPart& part, const std::vector<int64_t>& lengths,
                           int64_t first_row) {
  const std::vector<int64_t> rows = part.rows(lengths);
  std::vector<int64_t> positions;
  positions.reserve(rows.size());
  ContextRows result;
  size_t sequence = 0;
  int64_t begin = 0;
  for (const int64_t row : rows) {
    while (row >= begin + lengths[sequence]) begin += lengths[sequence++];
    positions.push_back(row - begin);
    auto& pieces = result.layout.pieces;
    if (!pieces.empty() && pieces.back().first + pieces.back().count == first_row + row)
      ++pieces.back().count;
    else
      pieces.push_back({first_row + row, 1});
  }
  result.layout.lengths = lengths;
  result.layout.positions = at::tensor(positions, at::kLong);
  result.layout.first_row = first_row;
  result.rows = at::tensor(rows, at::kLong);
  return result;
}

at::Tensor context_attention(const at::Tensor& queries, const at::Tensor& keys,
                             const at::Tensor& values, const CausalHeads& heads, const LmPass& pass,
                             Arithmetic arithmetic) {
  const int64_t rows = values.size(0), width = heads.width;
  const at::Tensor mixed =
      pass.tokens->attend(turned(queries, heads.heads, width, pass, arithmetic),
                          turned(keys, heads.key_value_heads, width, pass, arithmetic),
                          values.view({rows, heads.key_value_heads, width}), pass.layout->lengths);
  return mixed.reshape({rows, heads.heads * width});
}

at::Tensor whole_loss(const hooks::TokenPart& part, const at::Tensor& targets,
                      const std::function<at::Tensor(double divide_by)>& share) {
  constexpr int64_t kNothing = -100;
  const auto parts = static_cast<double>(part.count());
  const at::Tensor number = at::full({1}, targets.ne(kNothing).sum().item<double>(), at::kDouble);
  part.sum(number);
  // So divided, gradients need no pass of their own.
  const at::Tensor mine = share(number.item<double>() / parts);
  const at::Tensor whole = mine.detach().to(at::kDouble).div(parts).reshape({1});
  part.sum(whole);
  return WholeLossNode::apply(mine, whole);
}

at::Tensor gathered(const LmPass& pass, const at::Tensor& rows) {
  auto work = c10::make_intrusive<GatherWork>();
  work->part = pass.tokens;
  work->lengths = pass.layout->lengths;
  work->rows = pass.own_rows;
  return GatherNode::apply(rows, work);
}

}  // namespace lockstep::inline v0::internal
