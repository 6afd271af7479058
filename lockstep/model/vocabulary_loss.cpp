#include "lockstep/model/vocabulary_loss.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/kernels/kernels.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/model/internal/head_products.h"
#include "lockstep/model/internal/lm_nodes.h"
#include "lockstep/model/internal/products.h"
#include "lockstep/model/transformer_lm.h"

namespace lockstep::inline v0 {
namespace {

using internal::Arithmetic;
using internal::HeadProducts;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kNothing = -100;  // a target that is left out
constexpr int64_t kRowsOfAPiece = 8;

[[noreturn]] void refuse_loss(const std::string& what) {
  throw InvalidArgument("vocabulary_loss: " + what);
}

std::string shape_of(const at::Tensor& tensor) {
  std::string text = "[";
  for (const int64_t size : tensor.sizes())
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

void check_shapes(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& targets,
                  const VocabularyLossOptions& options) {
  if (!rows.defined() || !weight.defined() || !targets.defined() || rows.dim() != 2 ||
      weight.dim() != 2 || rows.size(1) != weight.size(1) || weight.numel() == 0 ||
      targets.scalar_type() != at::kLong || targets.dim() != 1 || targets.size(0) != rows.size(0))
    refuse_loss(
        "give rows [N, width], a weight [vocabulary, width] and int64 targets [N]" +
        (rows.defined() && weight.defined() && targets.defined()
             ? ", not " + shape_of(rows) + ", " + shape_of(weight) + " and " + shape_of(targets)
             : std::string()));
  const VocabularyPart& part = options.part;
  const int64_t all = part.all == 0 ? weight.size(0) : part.all;
  if (part.first < 0 || part.first + weight.size(0) > all ||
      (weight.size(0) < all && !part.combine))
    refuse_loss("a part from " + std::to_string(part.first) + " of " +
                std::to_string(weight.size(0)) + " rows, of a vocabulary of " +
                std::to_string(all) + "; a part lies within it and has a combine()");
  if (options.rows_at_a_time < 0)
    refuse_loss("rows_at_a_time is " + std::to_string(options.rows_at_a_time));
  if (!(options.divide_by >= 0))
    refuse_loss("divide_by is " + std::to_string(options.divide_by) + "; give 0 or more");
}

int64_t count_targets(const int64_t* targets, int64_t count, int64_t vocabulary) {
  int64_t known = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (targets[i] == kNothing) continue;
    if (targets[i] < 0 || targets[i] >= vocabulary)
      refuse_loss("the target " + std::to_string(targets[i]) + " is outside the vocabulary of " +
                  std::to_string(vocabulary) + "; -100 is for none");
    ++known;
  }
  return known;
}

// A chunk adds to the whole of the weight's gradient, which costs memory's time, so it is no smaller than it
// must be.
int64_t chunk_rows(int64_t vocabulary, int64_t width) {
  constexpr int64_t kLogits = int64_t{8} << 20, kLeast = 32, kMost = 512;
  const int64_t rows = std::max(kLogits / vocabulary, width / 2);
  return std::clamp(rows / kLeast * kLeast, kLeast, kMost);
}

struct LossWork : torch::CustomClassHolder {
  at::Tensor targets;  // contiguous, where the rows are
  VocabularyLossOptions options;
  std::optional<at::ScalarType> on_device;  // what products are of there
  Arithmetic arithmetic = Arithmetic::kFloat32;
  HeadProducts::Wanted wanted;
  at::Tensor weight;  // the parameter, for deferred gradients
  // Computed in forward, where they are wanted.
  at::Tensor drows, dweight;
};

// One chunk's way from logits to their gradient, for each type.
class ChunkSums {
 public:
  // [3, rows] of the chunk's logits, which become exponentials where those are kept.
  static at::Tensor statistics(const at::Tensor& logits, const at::Tensor& columns, bool keeps) {
    const at::Tensor result = at::empty({3, logits.size(0)}, logits.scalar_type());
    if (logits.scalar_type() == at::kDouble) return of_double(logits, columns, keeps, result);
    float* const to = result.mutable_data_ptr<float>();
    const int64_t rows = logits.size(0);
    kernels::in_parallel(
        rows, kRowsOfAPiece, at::get_num_threads(), [&](int64_t begin, int64_t end) {
          kernels::kernels().log_sums(entropy(logits, columns), {to, to + rows, to + 2 * rows},
                                      keeps, begin, end);
        });
    return result;
  }

  // Both in one, where nothing lies in between: a row stays in the second-level cache.
  static at::Tensor statistics_and_gradient(const at::Tensor& logits, const at::Tensor& columns,
                                            const at::Tensor& scales) {
    if (logits.scalar_type() == at::kDouble) {
      at::Tensor result = statistics(logits, columns, true);
      gradient(logits, columns, scales / result[1], scales);
      return result;
    }
    const int64_t rows = logits.size(0);
    const at::Tensor result = at::empty({3, rows}, at::kFloat);
    float* const to = result.mutable_data_ptr<float>();
    const auto* const scale = scales.const_data_ptr<float>();
    const kernels::CrossEntropy of = entropy(logits, columns);
    kernels::in_parallel(
        rows, kRowsOfAPiece, at::get_num_threads(), [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            kernels::kernels().log_sums(of, {to, to + rows, to + 2 * rows}, true, r, r + 1);
            const float factor = scale[r] / to[rows + r];
            kernels::kernels().cross_entropy_gradient(row_of(of, r), &factor, scale + r, 0, 1);
          }
        });
    return result;
  }

  static void gradient(const at::Tensor& exponentials, const at::Tensor& columns,
                       const at::Tensor& factors, const at::Tensor& scales) {
    if (exponentials.scalar_type() == at::kDouble) {
      exponentials.mul_(factors.unsqueeze(1));
      auto* const to = exponentials.mutable_data_ptr<double>();
      const auto* const column = columns.const_data_ptr<int64_t>();
      const auto* const scale = scales.const_data_ptr<double>();
      for (int64_t r = 0; r < columns.size(0); ++r) {
        if (scale[r] == 0)
          exponentials[r].zero_();
        else if (column[r] >= 0 && column[r] < exponentials.size(1))
          to[r * exponentials.stride(0) + column[r]] -= scale[r];
      }
      return;
    }
    kernels::in_parallel(exponentials.size(0), kRowsOfAPiece, at::get_num_threads(),
                         [&](int64_t begin, int64_t end) {
                           kernels::kernels().cross_entropy_gradient(
                               entropy(exponentials, columns), factors.const_data_ptr<float>(),
                               scales.const_data_ptr<float>(), begin, end);
                         });
  }

 private:
  static kernels::CrossEntropy entropy(const at::Tensor& logits, const at::Tensor& columns) {
    return {logits.size(1), logits.stride(0), logits.mutable_data_ptr<float>(),
            columns.const_data_ptr<int64_t>()};
  }
  static kernels::CrossEntropy row_of(const kernels::CrossEntropy& of, int64_t row) {
    return {of.width, of.pitch, of.logits + row * of.pitch, of.targets + row};
  }

  static at::Tensor of_double(const at::Tensor& logits, const at::Tensor& columns, bool keeps,
                              at::Tensor result) {
    const auto* const column = columns.const_data_ptr<int64_t>();
    const auto* const from = logits.const_data_ptr<double>();
    auto* const target = result[2].mutable_data_ptr<double>();
    for (int64_t r = 0; r < logits.size(0); ++r)
      target[r] =
          column[r] >= 0 && column[r] < logits.size(1) ? from[r * logits.stride(0) + column[r]] : 0;
    result[0].copy_(logits.amax(1));
    at::Tensor exponentials = keeps ? logits : logits.clone();
    exponentials.sub_(result[0].unsqueeze(1)).exp_();
    result[1].copy_(exponentials.sum(1));
    return result;
  }
};

// Chunk after chunk. Gradients into `work`. The losses in float64.
TokenScores score(const at::Tensor& rows, const at::Tensor& weight, LossWork& work,
                  double divisor) {
  const VocabularyPart& part = work.options.part;
  const int64_t count = rows.size(0), vocabulary = weight.size(0);
  const bool differentiates = work.wanted.rows || work.wanted.weight;
  const int64_t chunk =
      std::min(count, work.options.rows_at_a_time > 0
                          ? work.options.rows_at_a_time
                          : chunk_rows(part.all == 0 ? vocabulary : part.all, weight.size(1)));
  const auto products = internal::head_products(rows, weight, work.wanted, work.arithmetic);
  const at::ScalarType type = weight.scalar_type();
  const at::Tensor memory =
      at::empty({chunk, internal::logits_pitch(vocabulary, work.arithmetic)}, type);
  const at::Tensor columns = part.first == 0 ? work.targets : work.targets - part.first;
  const at::Tensor scales = work.targets.ne(kNothing).to(type).div_(divisor == 0 ? 1.0 : divisor);
  TokenScores scores{at::empty({count}, at::kDouble), at::empty({count}, at::kBool)};
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t size = std::min(chunk, count - begin);
    const at::Tensor logits = memory.narrow(0, 0, size).narrow(1, 0, vocabulary);
    const at::Tensor places = columns.narrow(0, begin, size);
    const at::Tensor scale = scales.narrow(0, begin, size);
    products->logits(begin, logits);
    at::Tensor statistics;
    if (differentiates && !part.combine) {
      statistics = ChunkSums::statistics_and_gradient(logits, places, scale);
    } else {
      statistics = ChunkSums::statistics(logits, places, differentiates);
      const at::Tensor own = statistics[0].clone();
      if (part.combine) part.combine(statistics);
      if (differentiates)
        ChunkSums::gradient(logits, places, scale * (own - statistics[0]).exp_() / statistics[1],
                            scale);
    }
    if (differentiates) products->gradients(begin, logits);
    const at::Tensor counts = scale.ne(0);
    scores.losses.narrow(0, begin, size)
        .copy_(at::where(counts,
                         statistics[0].to(at::kDouble) + statistics[1].to(at::kDouble).log() -
                             statistics[2].to(at::kDouble),
                         0.0));
    scores.likeliest.narrow(0, begin, size)
        .copy_(counts.logical_and(statistics[2].ge(statistics[0])));
  }
  work.drows = std::move(products->drows);
  work.dweight = std::move(products->dweight);
  return scores;
}

// The same on a device, by libtorch's operations and larger chunks: few of them, for which the host does not wait.
// Targets are not looked at; one outside of the vocabulary is in no part.
TokenScores score_on_device(const at::Tensor& rows, const at::Tensor& weight, LossWork& work,
                            const at::Tensor& divisor) {
  constexpr int64_t kLogits = int64_t{64} << 20;
  const VocabularyPart& part = work.options.part;
  const int64_t count = rows.size(0), vocabulary = weight.size(0);
  const int64_t chunk = std::max<int64_t>(1, work.options.rows_at_a_time > 0
                                                 ? work.options.rows_at_a_time
                                                 : kLogits / std::max(part.all, vocabulary));
  const at::ScalarType type = *work.on_device;
  const at::ScalarType wide = at::isReducedFloatingType(type) ? at::kFloat : type;
  const at::Tensor x = rows.to(type), w = weight.to(type);
  const at::Tensor own = work.targets - part.first;
  const at::Tensor foreign = own.lt(0).logical_or_(own.ge(vocabulary));
  const at::Tensor columns = own.masked_fill(foreign, 0).unsqueeze(1);
  const at::Tensor counts = work.targets.ne(kNothing);
  const at::Tensor scales = counts.to(wide).div_(divisor + divisor.eq(0));
  TokenScores scores{at::empty({count}, rows.options().dtype(at::kDouble)),
                     at::empty({count}, rows.options().dtype(at::kBool))};
  if (work.wanted.rows) work.drows = at::empty(rows.sizes(), rows.options().dtype(type));
  if (work.wanted.weight && count == 0) work.dweight = at::zeros_like(w);
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const auto of = [b = begin, n = std::min(chunk, count - begin)](const at::Tensor& all) {
      return all.narrow(0, b, n);
    };
    const at::Tensor logits = at::mm(of(x), w.t()).to(wide);
    const at::Tensor target = logits.gather(1, of(columns)).squeeze(1).masked_fill_(of(foreign), 0);
    const at::Tensor most = logits.amax(1);
    // What became of the logits, in their memory.
    const at::Tensor dlogits = at::Tensor(logits).sub_(most.unsqueeze(1)).exp_();
    const at::Tensor statistics = at::stack({most, dlogits.sum(1), target});
    part.combine(statistics);
    const auto [largest, sums, logit] = std::tuple(statistics[0], statistics[1], statistics[2]);
    of(scores.losses)
        .copy_(at::where(
            of(counts),
            largest.to(at::kDouble) + sums.to(at::kDouble).log() - logit.to(at::kDouble), 0.0));
    of(scores.likeliest).copy_(of(counts).logical_and(logit.ge(largest)));
    if (!work.wanted.rows && !work.wanted.weight) continue;
    const at::Tensor scale = of(scales);
    dlogits.mul_(((most - largest).exp_() * scale / sums).unsqueeze(1));
    dlogits.scatter_add_(1, of(columns), scale.neg().masked_fill_(of(foreign), 0).unsqueeze(1));
    const at::Tensor d = dlogits.to(type);
    if (work.wanted.rows) {
      at::Tensor out = of(work.drows);
      at::mm_out(out, d, w);
    }
    if (!work.wanted.weight) continue;
    const at::Tensor more = at::mm(d.t(), of(x));
    if (work.dweight.defined())
      work.dweight.add_(more);
    else
      work.dweight = more.to(weight.scalar_type());
  }
  return scores;
}

int64_t count_targets(const at::Tensor& weight, const LossWork& work) {
  const int64_t all = work.options.part.all;
  return count_targets(work.targets.const_data_ptr<int64_t>(), work.targets.size(0),
                       all == 0 ? weight.size(0) : all);
}

at::Tensor mean_loss(const at::Tensor& rows, const at::Tensor& weight, LossWork& work) {
  const auto guard = internal::without_autocast();
  const at::NoGradGuard no_grad;
  if (work.on_device) {
    const at::Tensor divisor =
        work.options.divide_by > 0
            ? at::full({}, work.options.divide_by, rows.options().dtype(at::kDouble))
            : work.targets.ne(kNothing).sum().to(at::kDouble);
    return score_on_device(rows, weight, work, divisor)
        .losses.sum()
        .div(divisor)
        .to(at::isReducedFloatingType(weight.scalar_type()) ? at::kFloat : weight.scalar_type());
  }
  const auto known = static_cast<double>(count_targets(weight, work));
  const double divisor = work.options.divide_by > 0 ? work.options.divide_by : known;
  double sum = 0;
  if (rows.size(0) > 0) {
    sum = score(rows, weight, work, divisor).losses.sum().item<double>();
  } else {
    if (work.wanted.rows) work.drows = at::zeros_like(rows);
    if (work.wanted.weight) work.dweight = at::zeros_like(weight);
  }
  const double mean = divisor == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / divisor;
  return at::scalar_tensor(mean, weight.scalar_type());
}

class VocabularyLossNode : public torch::autograd::Function<VocabularyLossNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, const c10::intrusive_ptr<LossWork>& work) {
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    return mean_loss(rows, weight, *work);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_second_gradient("vocabulary_loss");
    const auto work =
        c10::static_intrusive_pointer_cast<LossWork>(context->saved_data["work"].toCapsule());
    const at::Tensor& given = gradients[0];
    const double scale = given.is_cpu() ? given.item<double>() : 1;
    const bool again = torch::autograd::get_current_graph_task_keep_graph();
    // The only reference is handed on, so that a grad() takes the memory over.
    const auto take = [&](size_t input, bool wanted, at::Tensor& from) -> at::Tensor {
      const bool later = input == 1 && work->options.deferred;
      if (!wanted || !(later || context->needs_input_grad(input))) return {};
      if (!from.defined()) refuse_loss("a second backward; give the first one retain_graph");
      at::Tensor taken = again ? from.clone() : std::move(from);
      from = again ? from : at::Tensor();
      if (!given.is_cpu())
        taken.mul_(given);  // which the host does not wait for
      else if (scale != 1)
        taken.mul_(scale);
      return taken;
    };
    variable_list result(3);
    result[0] = take(0, work->wanted.rows, work->drows);
    result[1] = take(1, work->wanted.weight, work->dweight);
    if (work->options.deferred && result[1].defined()) {
      work->options.deferred->add(work->weight, [gradient = std::move(result[1])]() mutable {
        return std::move(gradient);
      });
      result[1] = at::Tensor();
    }
    return result;
  }
};

// What is computed with, checked; rows and weight are contiguous, and of the types that head_products() takes.
struct Prepared {
  c10::intrusive_ptr<LossWork> work;  // none: the composed form
  at::Tensor rows, weight;
};

Prepared prepared(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& targets,
                  const VocabularyLossOptions& options) {
  check_shapes(rows, weight, targets, options);
  if (!rows.is_cpu()) {
    // Elsewhere gradients are not deferred, by no layer.
    if (!options.part.combine) return {};
    auto work = c10::make_intrusive<LossWork>();
    work->targets = targets.contiguous();
    work->options = options;
    work->options.deferred = nullptr;
    const at::DeviceType device = rows.device().type();
    work->on_device = at::autocast::is_autocast_enabled(device)
                          ? at::autocast::get_autocast_dtype(device)
                          : weight.scalar_type();
    return {std::move(work), rows, weight};
  }
  const bool exact = weight.is_cpu() && weight.scalar_type() == at::kDouble;
  Arithmetic how = exact ? Arithmetic::kFloat32 : internal::arithmetic_for(weight);
  // Under autocast on a processor without products of bfloat16, what only these loops can do is done in float32.
  const bool only_here = options.part.combine || options.deferred;
  const bool widened = how == Arithmetic::kComposed && only_here && weight.is_cpu() &&
                       weight.scalar_type() == at::kFloat && at::isFloatingType(rows.scalar_type());
  if (widened) how = Arithmetic::kFloat32;
  const at::ScalarType type = how == Arithmetic::kBFloat16 ? at::kBFloat16
                              : widened                    ? at::kFloat
                                                           : rows.scalar_type();
  if (how == Arithmetic::kComposed || !targets.is_cpu() ||
      (how != Arithmetic::kBFloat16 && type != weight.scalar_type())) {
    if (only_here)
      refuse_loss(
          "a divided vocabulary and deferred gradients are, on the CPU, for float32, float64 and "
          "bfloat16 under autocast");
    return {};
  }
  auto work = c10::make_intrusive<LossWork>();
  work->targets = targets.contiguous();
  work->options = options;
  work->arithmetic = how;
  return {std::move(work), rows.to(type).contiguous(), weight.contiguous()};
}

}  // namespace

at::Tensor divided_loss(const at::Tensor& logits, const at::Tensor& targets, double divide_by) {
  if (divide_by == 0) return next_token_loss(logits, targets);
  const bool is_short = at::isReducedFloatingType(logits.scalar_type());
  return at::cross_entropy_loss(is_short ? logits.to(at::kFloat) : logits, targets, {},
                                at::Reduction::Sum, kNothing) /
         divide_by;
}

at::Tensor vocabulary_loss(const at::Tensor& rows, const at::Tensor& weight,
                           const at::Tensor& targets, const VocabularyLossOptions& options) {
  const auto [work, x, w] = prepared(rows, weight, targets, options);
  if (!work) return divided_loss(at::linear(rows, weight), targets, options.divide_by);
  if (!at::GradMode::is_enabled() || !(x.requires_grad() || w.requires_grad()))
    return mean_loss(x, w, *work);
  work->wanted = {x.requires_grad(), w.requires_grad()};
  if (work->options.deferred) work->weight = weight;
  // A gradient that comes later does not come now, not even as an undefined one (lm_nodes.cpp).
  const bool later = work->options.deferred && x.requires_grad();
  return VocabularyLossNode::apply(x, later ? w.detach() : w, work);
}

TokenScores token_scores(const at::Tensor& logits, const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  const at::Tensor wide =
      at::isReducedFloatingType(logits.scalar_type()) ? logits.to(at::kFloat) : logits;
  const at::Tensor own = wide.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  return {at::cross_entropy_loss(wide, targets, {}, at::Reduction::None, kNothing).to(at::kDouble),
          own.ge(wide.amax(1)).logical_and(targets.ne(kNothing))};
}

TokenScores vocabulary_scores(const at::Tensor& rows, const at::Tensor& weight,
                              const at::Tensor& targets, const VocabularyLossOptions& options) {
  const at::NoGradGuard no_grad;
  const auto [work, x, w] = prepared(rows, weight, targets, options);
  if (!work) return token_scores(at::linear(rows, weight), targets);
  if (work->on_device) {
    const auto guard = internal::without_autocast();
    return score_on_device(x, w, *work, at::ones({}, x.options().dtype(at::kDouble)));
  }
  const int64_t known = count_targets(w, *work);
  if (x.size(0) == 0) return {at::empty({0}, at::kDouble), at::empty({0}, at::kBool)};
  const auto guard = internal::without_autocast();
  return score(x, w, *work, static_cast<double>(known));
}

void combine_statistics(const at::Tensor& statistics, const ReduceInPlace& all_max,
                        const ReduceInPlace& all_sum) {
  const at::Tensor own = statistics[0].clone(), most = statistics[0];
  all_max(most);
  const at::Tensor sums = statistics.narrow(0, 1, 2);
  sums[0].mul_((own - most).exp_());
  all_sum(sums);
}

at::Tensor combined_statistics(const std::vector<at::Tensor>& parts) {
  if (parts.empty()) refuse_loss("no part's statistics to combine");
  at::Tensor most = parts[0][0];
  for (const at::Tensor& part : parts) most = at::maximum(most, part[0]);
  at::Tensor result = parts[0].clone().zero_();
  for (const at::Tensor& part : parts) {
    result[1].add_(part[1] * (part[0] - most).exp_());
    result[2].add_(part[2]);
  }
  result[0].copy_(most);
  return result;
}

}  // namespace lockstep::inline v0
