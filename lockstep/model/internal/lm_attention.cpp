// Attention of the sequences of a batch to their own past. See lm_nodes.h.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/device/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/model/internal/layer_math.h"
#include "lockstep/model/internal/lm_nodes.h"

namespace lockstep::inline v0::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRows = 64;  // of rotations, shared among threads in pieces of so many

// Sequences of one length that lie side by side.
struct Run {
  int64_t begin = 0;  // their first row
  int64_t sequences = 0;
  int64_t length = 0;
};

std::vector<Run> runs_of(const CausalLayout& layout, bool together = true) {
  std::vector<Run> runs;
  int64_t begin = 0;
  for (const int64_t length : layout.lengths) {
    if (together && !runs.empty() && runs.back().length == length)
      ++runs.back().sequences;
    else
      runs.push_back({begin, 1, length});
    begin += length;
  }
  return runs;
}

// Between rows and heads: [sequences, heads, length, width].
class Turner {
 public:
  Turner(const CausalHeads& heads, const CausalLayout& layout, const RotaryTable& rotary)
      : heads_(heads), layout_(layout), rotary_(rotary) {}

  at::Tensor to_heads(const at::Tensor& rows, const Run& run, int64_t heads, bool turned) const {
    const at::Tensor result =
        at::empty({run.sequences, heads, run.length, heads_.width}, rows.scalar_type());
    turn(kernels::kernels().rotate, rows, run, heads, turned, rows, result, true);
    return result;
  }
  // `from` contiguous; into the run's rows.
  void to_rows(const at::Tensor& from, const Run& run, int64_t heads, bool turned,
               const at::Tensor& rows) const {
    turn(kernels::kernels().rotate_back, rows, run, heads, turned, from, rows, false);
  }

 private:
  using Kernel = void (*)(const kernels::Rotary&, const void*, void*, int64_t, int64_t, int64_t);

  void turn(Kernel kernel, const at::Tensor& rows, const Run& run, int64_t heads, bool turned,
            const at::Tensor& from, const at::Tensor& to, bool from_rows) const {
    kernels::Rotary r;
    r.type = kernel_type(rows.scalar_type());
    r.heads = heads;
    r.width = heads_.width;
    r.pitch = rows.stride(0);
    const auto bytes = static_cast<int64_t>(rows.element_size());
    const int64_t per_sequence = run.length * heads * heads_.width * bytes;
    const auto* const positions = layout_.positions.const_data_ptr<int64_t>() + run.begin;
    if (turned) {
      r.cosines = rotary_.cosines.const_data_ptr<float>();
      r.sines = rotary_.sines.const_data_ptr<float>();
    }
    const auto* const source = static_cast<const char*>(from.const_data_ptr());
    auto* const target = static_cast<char*>(to.mutable_data_ptr());
    const int64_t pieces = (run.length + kRows - 1) / kRows;
    kernels::in_parallel(
        run.sequences * pieces, 1, at::get_num_threads(), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t sequence = i / pieces, first = i % pieces * kRows;
            const int64_t in_rows = (run.begin + sequence * run.length) * r.pitch * bytes;
            const int64_t in_heads = sequence * per_sequence;
            kernels::Rotary mine = r;
            mine.positions = positions + sequence * run.length;
            kernel(mine, source + (from_rows ? in_rows : in_heads),
                   target + (from_rows ? in_heads : in_rows), run.length, first,
                   std::min(run.length, first + kRows));
          }
        });
  }

  const CausalHeads& heads_;
  const CausalLayout& layout_;
  const RotaryTable& rotary_;
};

at::Tensor summed_over_group(const at::Tensor& x, int64_t group) {
  const auto s = x.sizes();
  if (group == 1) return x.contiguous();
  return x.reshape({s[0], s[1] / group, group, s[2], s[3]}).sum(2);
}

struct AttentionWork : torch::CustomClassHolder {
  CausalHeads heads;
  std::shared_ptr<const CausalLayout> layout;
  RotaryTable rotary;
};

// Of each run: queries, keys, values as heads, the result, its sums.
constexpr size_t kSavedOfRun = 5;

class AttentionNode : public torch::autograd::Function<AttentionNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& queries,
                            const at::Tensor& keys, const at::Tensor& values,
                            const c10::intrusive_ptr<AttentionWork>& work) {
    const auto guard = without_autocast();
    const CausalHeads& heads = work->heads;
    const int64_t group = heads.heads / heads.key_value_heads;
    const Turner turner(heads, *work->layout, work->rotary);
    const auto runs = runs_of(*work->layout);
    variable_list kept, parts;
    for (const Run& run : runs) {
      const at::Tensor q = turner.to_heads(queries, run, heads.heads, true);
      const at::Tensor k = turner.to_heads(keys, run, heads.key_value_heads, true);
      const at::Tensor v = turner.to_heads(values, run, heads.key_value_heads, false);
      auto [mixed, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
          q, repeated(k, group), repeated(v, group), 0.0, /*is_causal=*/true);
      // The kernel lays the result out as rows.
      parts.push_back(
          mixed.transpose(1, 2).reshape({run.sequences * run.length, heads.heads * heads.width}));
      for (at::Tensor tensor : {q, k, v, mixed, sums}) kept.push_back(std::move(tensor));
    }
    context->save_for_backward(std::move(kept));
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    return parts.size() == 1 ? parts[0] : at::cat(parts);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_gradient("TransformerLm");
    const auto guard = without_autocast();
    const auto kept = context->get_saved_variables();
    const auto work =
        c10::static_intrusive_pointer_cast<AttentionWork>(context->saved_data["work"].toCapsule());
    const CausalHeads& heads = work->heads;
    const int64_t group = heads.heads / heads.key_value_heads;
    const Turner turner(heads, *work->layout, work->rotary);
    const auto runs = runs_of(*work->layout);
    const at::Tensor dy = gradients[0].contiguous();
    const int64_t rows = dy.size(0), narrow = heads.key_value_heads * heads.width;
    const at::Tensor dq = at::empty_like(dy), dk = at::empty({rows, narrow}, dy.options()),
                     dv = at::empty({rows, narrow}, dy.options());
    for (size_t i = 0; i < runs.size(); ++i) {
      const Run& run = runs[i];
      const at::Tensor* const of = &kept[i * kSavedOfRun];
      const at::Tensor dmixed = dy.narrow(0, run.begin, run.sequences * run.length)
                                    .view({run.sequences, run.length, heads.heads, heads.width})
                                    .transpose(1, 2);
      const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          dmixed, of[0], repeated(of[1], group), repeated(of[2], group), of[3], of[4], 0.0,
          /*is_causal=*/true);
      turner.to_rows(q.contiguous(), run, heads.heads, true, dq);
      turner.to_rows(summed_over_group(k, group), run, heads.key_value_heads, true, dk);
      turner.to_rows(summed_over_group(v, group), run, heads.key_value_heads, false, dv);
    }
    return {dq, dk, dv, at::Tensor()};
  }
};

// On the CPU they are looked up; elsewhere they are computed, since the table is the host's and large.
RotaryRows::Angles angles_of(const at::Tensor& positions, const RotaryTable& rotary,
                             const at::TensorOptions& options) {
  RotaryRows::Angles& known = rotary.rows->of(positions, options);
  if (known.cosines.defined()) return known;
  const at::NoGradGuard no_grad;
  if (options.device().is_cpu()) {
    const auto of = [&](const at::Tensor& table) {
      return table.index_select(0, positions).unsqueeze(1).to(options);
    };
    return known = {positions, of(rotary.cosines), of(rotary.sines)};
  }
  const at::Tensor angles = at::outer(device::copy_to(positions.to(at::kFloat), options.device()),
                                      device::copy_to(rotary.frequencies, options.device()));
  // For all of a head: fewer operations turn it.
  const at::Tensor cosines = angles.cos(), sines = angles.sin();
  return known = {positions, at::cat({cosines, cosines}, 1).unsqueeze(1).to(options),
                  at::cat({sines.neg(), sines}, 1).unsqueeze(1).to(options)};
}

// Of libtorch's operations: a call for each run of sequences of one length, and on the CPU, where it would gain
// nothing, for each sequence.
at::Tensor composed(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                    const CausalHeads& heads, const CausalLayout& layout, const RotaryTable& rotary,
                    const kernels::Dropout& dropout) {
  const int64_t group = heads.heads / heads.key_value_heads;
  const at::Tensor q = rotated(queries, heads.heads, layout.positions, rotary).unsqueeze(0);
  const at::Tensor k =
      repeated(rotated(keys, heads.key_value_heads, layout.positions, rotary).unsqueeze(0), group);
  const at::Tensor v = repeated(values.view({values.size(0), heads.key_value_heads, heads.width})
                                    .transpose(0, 1)
                                    .unsqueeze(0),
                                group);
  std::vector<at::Tensor> parts;
  for (const auto& [begin, sequences, length] : runs_of(layout, !queries.is_cpu())) {
    const auto of = [b = begin, n = sequences, l = length](const at::Tensor& x) {
      const at::Tensor all = x.squeeze(0);
      // A part of rows costs backward operations that all of them do not.
      const at::Tensor own = all.size(1) == n * l ? all : all.narrow(1, b, n * l);
      return own.unflatten(1, {n, l}).transpose(0, 1);
    };
    at::Tensor mixed;
    if (dropout.threshold == 0) {
      mixed = at::scaled_dot_product_attention(of(q), of(k), of(v), {}, 0.0, /*is_causal=*/true);
    } else {
      at::Tensor scores =
          at::matmul(of(q), of(k).transpose(2, 3)) / std::sqrt(static_cast<double>(heads.width));
      const at::Tensor future =
          at::full({length, length}, -std::numeric_limits<double>::infinity(), scores.options())
              .triu(1);
      const at::Tensor weights = at::softmax(scores + future, -1);
      // A row of the mask for each row of the batch and each head of the layer.
      std::vector<RowPiece> pieces;
      for (int64_t i = 0; i < sequences; ++i)
        pieces.push_back(
            {(layout.first_row + begin + i * length) * heads.all + heads.first * length,
             heads.heads * length});
      const at::Tensor flat = weights.view({sequences * heads.heads * length, length});
      mixed = at::matmul(drop_rows(flat, dropout, pieces, 0).view_as(weights), of(v));
    }
    parts.push_back(mixed.transpose(1, 2).reshape({sequences * length, heads.heads * heads.width}));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace

at::Tensor repeated(const at::Tensor& x, int64_t group) {
  if (group == 1) return x;
  const auto s = x.sizes();
  return x.unsqueeze(2)
      .expand({s[0], s[1], group, s[2], s[3]})
      .reshape({s[0], s[1] * group, s[2], s[3]});
}

RotaryRows::Angles& RotaryRows::of(const at::Tensor& positions, const at::TensorOptions& options) {
  for (Angles& one : known_)
    if (one.positions.is_same(positions) && one.cosines.device() == options.device() &&
        one.cosines.dtype() == options.dtype())
      return one;
  return known_.emplace_back();
}

at::Tensor rotated(const at::Tensor& rows, int64_t heads, const at::Tensor& positions,
                   const RotaryTable& rotary) {
  const at::Tensor x = rows.view({rows.size(0), heads, rows.size(1) / heads});
  const int64_t half = x.size(2) / 2;
  const auto& [own, cosines, sines] = angles_of(positions, rotary, x.options());
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  if (!x.is_cpu()) return at::addcmul(x * cosines, at::cat({b, a}, 2), sines).transpose(0, 1);
  return at::cat({a * cosines - b * sines, b * cosines + a * sines}, 2).transpose(0, 1);
}

at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const CausalHeads& heads,
                            const std::shared_ptr<const CausalLayout>& layout,
                            const RotaryTable& rotary, const kernels::Dropout& dropout,
                            Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kComposed || dropout.threshold > 0)
    return composed(queries, keys, values, heads, *layout, rotary, dropout);
  auto work = c10::make_intrusive<AttentionWork>();
  work->heads = heads;
  work->layout = layout;
  work->rotary = rotary;
  return AttentionNode::apply(queries, keys, values, work);
}

}  // namespace lockstep::inline v0::internal
