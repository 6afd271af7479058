#include "lockstep/model/internal/lm_nodes.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/hooks/autograd_node.h"
#include "lockstep/kernels/dropout.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/model/internal/layer_math.h"

namespace lockstep::inline v0::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kElements = int64_t{1} << 15;  // shared among threads in pieces of so many

const void* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

class RmsNormNode : public torch::autograd::Function<RmsNormNode> {
 public:
  // inputs: gamma, x; then the residual, where there is one. (An undefined one has no place in a graph.)
  static variable_list forward(AutogradContext* context, at::TensorList inputs, double epsilon,
                               bool in_bfloat16) {
    const auto guard = without_autocast();
    const at::Tensor &gamma = inputs[0], &x = inputs[1];
    const at::Tensor residual = inputs.size() > 2 ? inputs[2] : at::Tensor();
    const at::ScalarType type = in_bfloat16 ? at::kBFloat16 : at::kFloat;
    // Without a residual x is the float32 stream.
    const at::Tensor stream = (residual.defined() ? residual : x).contiguous();
    const at::Tensor added = residual.defined() ? x.contiguous() : at::Tensor();
    if (stream.scalar_type() != at::kFloat ||
        (added.defined() && (added.sizes() != stream.sizes() || added.scalar_type() != type)))
      throw InvalidArgument("TransformerLm: what is added to the rows has another shape or type");
    const int64_t rows = stream.size(0), width = stream.size(1);
    const at::Tensor z = added.defined() ? empty_rows(rows, width, at::kFloat) : stream;
    const at::Tensor y = empty_rows(rows, width, type), rrms = at::empty({rows}, at::kFloat);
    kernels::RmsNorm norm;
    norm.width = width;
    norm.type = kernel_type(type);
    norm.x = data_of(added);
    norm.residual = stream.const_data_ptr<float>();
    norm.gamma = gamma.const_data_ptr<float>();
    norm.epsilon = static_cast<float>(epsilon);
    const kernels::RmsNormOutputs out{added.defined() ? z.mutable_data_ptr<float>() : nullptr,
                                      y.mutable_data_ptr(), rrms.mutable_data_ptr<float>()};
    kernels::in_parallel(
        rows, kRowsAtATime, at::get_num_threads(),
        [&](int64_t begin, int64_t end) { kernels::kernels().rms_norm(norm, out, begin, end); });
    context->save_for_backward({z, gamma, rrms});
    context->saved_data["added"] = added.defined();
    context->saved_data["bfloat16"] = in_bfloat16;
    context->set_materialize_grads(false);
    if (!added.defined()) return {y};
    return {y, z};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_gradient("TransformerLm");
    const auto guard = without_autocast();
    const auto saved = context->get_saved_variables();
    const at::Tensor &z = saved[0], &gamma = saved[1], &rrms = saved[2];
    const bool added = context->saved_data["added"].toBool();
    const bool in_bfloat16 = context->saved_data["bfloat16"].toBool();
    const int64_t rows = z.size(0), width = z.size(1);
    at::Tensor dz_too = added && gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    // gamma, x, residual; and what is no tensor.
    variable_list result(added ? 5 : 4);
    if (!gradients[0].defined()) {
      if (added) result[1] = result[2] = dz_too;
      return result;
    }
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dz = empty_rows(rows, width, at::kFloat);
    const at::Tensor dx =
        added && in_bfloat16 ? empty_rows(rows, width, at::kBFloat16) : at::Tensor();
    kernels::RmsNorm norm;
    norm.width = width;
    norm.type = in_bfloat16 ? kernels::Type::kBFloat16 : kernels::Type::kFloat32;
    norm.gamma = gamma.const_data_ptr<float>();
    kernels::RmsNormGradients g;
    g.z = z.const_data_ptr<float>();
    g.rrms = rrms.const_data_ptr<float>();
    g.dy = dy.const_data_ptr();
    g.dz_too = static_cast<const float*>(data_of(dz_too));
    g.dz = dz.mutable_data_ptr<float>();
    g.dx = dx.defined() ? dx.mutable_data_ptr() : nullptr;
    result[0] = summed_over_rows(rows, width, [&](int64_t begin, int64_t end, float* sums) {
      kernels::RmsNormGradients mine = g;
      mine.sums = sums;
      kernels::kernels().rms_norm_backward(norm, mine, begin, end);
    });
    result[1] = dx.defined() ? dx : dz;
    if (added) result[2] = dz;
    return result;
  }
};

RmsNormed composed_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                            const at::Tensor& gamma, double epsilon) {
  const at::Tensor z = residual.defined() ? residual + x : x;
  // One kernel on a GPU.
  if (!z.is_cpu() && z.scalar_type() == gamma.scalar_type())
    return {z, at::rms_norm(z, gamma.sizes(), gamma, epsilon)};
  // As transformers: 16 bits overflow in the square.
  const at::Tensor wide = at::isReducedFloatingType(z.scalar_type()) ? z.to(at::kFloat) : z;
  const at::Tensor rrms = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + epsilon);
  return {z, (wide * rrms).to(z.scalar_type()) * gamma};
}

// ---- products ----

struct ProductsWork : torch::CustomClassHolder {
  std::shared_ptr<DeferredGradients> deferred;  // none: in backward
  std::vector<Product> of;
};

at::Tensor weight_gradient_of(const at::Tensor& dy, const at::Tensor& x) {
  const at::Tensor gradient = at::mm(dy.t(), x);
  return gradient.scalar_type() == at::kFloat ? gradient : gradient.to(at::kFloat);
}

// A gradient that is computed when autograd comes by.
class LaterNode final : public torch::autograd::Node {
 public:
  LaterNode(const at::Tensor& weight, DeferredGradients::Compute compute, const at::Tensor& seed)
      : compute_(std::move(compute)) {
    add_next_edge(torch::autograd::impl::gradient_edge(weight));
    add_input_metadata(seed);
  }

 private:
  variable_list apply(variable_list&&) override {
    const auto guard = without_autocast();
    // It lets its rows go before the next one is computed.
    const auto compute = std::exchange(compute_, nullptr);
    return {compute()};
  }

  DeferredGradients::Compute compute_;
};

class ProductsNode : public torch::autograd::Function<ProductsNode> {
 public:
  // inputs: x, then each product's weight, and its bias where it has one.
  static variable_list forward(AutogradContext* context, at::TensorList inputs, bool in_bfloat16,
                               const c10::intrusive_ptr<ProductsWork>& work) {
    const auto guard = without_autocast();
    const at::Tensor& x = inputs[0];
    variable_list kept{x}, results;
    size_t next = 1;
    for (const Product& one : work->of) {
      const at::Tensor& exact = inputs[next++];
      const at::Tensor weight = in_bfloat16 ? rounded({exact}) : exact;
      const at::Tensor bias = one.bias.defined() ? inputs[next++] : at::Tensor();
      results.push_back(bias.defined()
                            ? at::addmm(in_bfloat16 ? bias.to(at::kBFloat16) : bias, x, weight.t())
                            : at::mm(x, weight.t()));
      kept.push_back(weight);
    }
    context->save_for_backward(std::move(kept));
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    context->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list dys) {
    refuse_second_gradient("TransformerLm");
    const auto guard = without_autocast();
    const auto kept = context->get_saved_variables();
    const auto work =
        c10::static_intrusive_pointer_cast<ProductsWork>(context->saved_data["work"].toCapsule());
    const at::Tensor& x = kept[0];
    variable_list result(1);
    for (size_t i = 0; i < dys.size(); ++i) {
      const bool has_bias = work->of[i].bias.defined();
      const size_t at_weight = result.size();
      result.resize(at_weight + (has_bias ? 2 : 1));
      if (!dys[i].defined()) continue;
      const at::Tensor dy = dys[i].contiguous();
      if (context->needs_input_grad(0)) {
        if (result[0].defined())
          result[0].addmm_(dy, kept[1 + i]);
        else
          result[0] = at::mm(dy, kept[1 + i]);
      }
      const auto wanted = [&](const at::Tensor& parameter, size_t at) {
        return work->deferred ? parameter.requires_grad() : context->needs_input_grad(at);
      };
      if (wanted(work->of[i].weight, at_weight)) {
        if (work->deferred) {
          work->deferred->add(work->of[i].weight,
                              [dy, x = x.detach()] { return weight_gradient_of(dy, x); });
        } else {
          result[at_weight] = weight_gradient_of(dy, x);
        }
      }
      if (has_bias && wanted(work->of[i].bias, at_weight + 1)) {
        const at::Tensor sums = column_sums(dy);
        if (work->deferred)
          work->deferred->add(work->of[i].bias, [sums] { return sums; });
        else
          result[at_weight + 1] = sums;
      }
    }
    result.resize(result.size() + 2);  // what is no tensor
    return result;
  }
};

// ---- SwiGLU, dropout ----

kernels::SwiGlu swiglu_of(const at::Tensor& gate, const at::Tensor& up) {
  return {kernel_type(gate.scalar_type()), gate.const_data_ptr(), up.const_data_ptr()};
}

class SwiGluNode : public torch::autograd::Function<SwiGluNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    const at::Tensor y = empty_rows(gate.size(0), gate.size(1), gate.scalar_type());
    const kernels::SwiGlu swiglu = swiglu_of(gate, up);
    kernels::in_parallel(gate.numel(), kElements, at::get_num_threads(),
                         [&](int64_t begin, int64_t end) {
                           kernels::kernels().swiglu(swiglu, y.mutable_data_ptr(), begin, end);
                         });
    context->save_for_backward({gate, up});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_gradient("TransformerLm");
    const auto saved = context->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dgate = at::empty_like(saved[0]), dup = at::empty_like(saved[1]);
    const kernels::SwiGlu swiglu = swiglu_of(saved[0], saved[1]);
    const kernels::SwiGluGradients out{dy.const_data_ptr(), dgate.mutable_data_ptr(),
                                       dup.mutable_data_ptr()};
    kernels::in_parallel(dy.numel(), kElements, at::get_num_threads(),
                         [&](int64_t begin, int64_t end) {
                           kernels::kernels().swiglu_backward(swiglu, out, begin, end);
                         });
    return {dgate, dup};
  }
};

// 0, or the scale, for each element; float32.
void kept_elements(const kernels::Dropout& dropout, int64_t first_row, int64_t first_column,
                   const at::Tensor& mask) {
  const int64_t rows = mask.size(0), columns = mask.size(1);
  auto* const to = mask.mutable_data_ptr<float>();
  kernels::in_parallel(rows, kRowsAtATime, at::get_num_threads(), [&](int64_t begin, int64_t end) {
    kernels::kernels().kept(dropout, {first_row + begin, first_column, end - begin, columns},
                            to + begin * columns);
  });
}

// Shifted to the right as an unsigned number is, whose halves int64 tensors hold.
at::Tensor shifted(const at::Tensor& x, int64_t bits) {
  return x.bitwise_right_shift(bits).bitwise_and_((int64_t{1} << (64 - bits)) - 1);
}

// What kept_elements() says of the int64 `rows`, for each element of x, by operations of the device that both are on:
// random_word.h in int64, which wraps around.
at::Tensor kept_on_device(const kernels::Dropout& dropout, const at::Tensor& rows,
                          int64_t first_column, const at::Tensor& like) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kLow = 0xffffffff;
  const auto wrapped = [](uint64_t constant) { return static_cast<int64_t>(constant); };
  at::Tensor key = rows.unsqueeze(1).mul(wrapped(0x9e3779b97f4a7c15)).add_(wrapped(dropout.seed));
  key = shifted(key, 30).bitwise_xor_(key).mul_(wrapped(0xbf58476d1ce4e5b9));
  key = shifted(key, 27).bitwise_xor_(key).mul_(wrapped(0x94d049bb133111eb));
  key = shifted(key, 31).bitwise_xor_(key);
  const int64_t columns = like.size(1),
                blocks = (columns + 31) / 32;  // of 32 columns, which 16 words decide
  const at::Tensor numbers =
      at::arange(first_column / 2, first_column / 2 + blocks * 16, rows.options());
  at::Tensor x = key.bitwise_and(kLow).add(numbers).bitwise_and_(kLow);
  // Below 2^32 a shift is the same for both kinds of numbers.
  const auto round = [&x](int64_t bits, int64_t factor) {
    x = x.bitwise_right_shift(bits).bitwise_xor_(x).mul_(factor).bitwise_and_(kLow);
  };
  round(17, 0xed5ad4bb);
  x.bitwise_xor_(shifted(key, 32));
  round(11, 0xac4c1b51);
  round(15, 0x31848bab);
  x = x.bitwise_right_shift(14).bitwise_xor_(x).view({rows.size(0), blocks, 16});
  const int64_t threshold = dropout.threshold;
  return at::stack({x.bitwise_and(0xffff).ge(threshold), x.bitwise_right_shift(16).ge(threshold)},
                   2)
      .view({rows.size(0), blocks * 32})
      .narrow(1, 0, columns)
      .to(like.scalar_type())
      .mul_(dropout.scale);
}

}  // namespace

void DeferredGradients::run() {
  if (pending_.empty()) return;
  // Autograd runs the youngest node first.
  std::vector<Pending> pending = std::exchange(pending_, {});
  const at::Tensor seed = at::zeros({}, at::kFloat);
  torch::autograd::edge_list roots;
  while (!pending.empty()) {
    Pending one = std::move(pending.back());
    pending.pop_back();
    roots.emplace_back(hooks::make_node<LaterNode>(one.weight, std::move(one.compute), seed), 0);
  }
  const variable_list seeds(roots.size(), seed);
  torch::autograd::Engine::get_default_engine().execute(
      roots, seeds, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
}

RmsNormed rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& gamma,
                   double epsilon, Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kComposed) return composed_rms_norm(x, residual, gamma, epsilon);
  variable_list inputs{gamma, x};
  if (residual.defined()) inputs.push_back(residual);
  const variable_list result =
      RmsNormNode::apply(at::TensorList(inputs), epsilon, arithmetic == Arithmetic::kBFloat16);
  return {residual.defined() ? result[1] : x, result[0]};
}

std::vector<at::Tensor> products(const at::Tensor& x, const std::vector<Product>& of,
                                 Arithmetic arithmetic,
                                 std::shared_ptr<DeferredGradients> deferred) {
  if (arithmetic == Arithmetic::kComposed) {
    std::vector<at::Tensor> results;
    for (const Product& one : of) results.push_back(at::linear(x, one.weight, one.bias));
    return results;
  }
  variable_list inputs{x};
  // A gradient that comes later does not come now: not even as an undefined one, of which hooks are told.
  // Where x has none, the weights alone make this a node.
  const bool alone = deferred && x.requires_grad();
  for (const Product& one : of) {
    inputs.push_back(alone ? one.weight.detach() : one.weight);
    if (one.bias.defined()) inputs.push_back(alone ? one.bias.detach() : one.bias);
  }
  auto work = c10::make_intrusive<ProductsWork>();
  work->deferred = std::move(deferred);
  work->of = of;
  return ProductsNode::apply(at::TensorList(inputs), arithmetic == Arithmetic::kBFloat16, work);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kComposed) return at::silu(gate) * up;
  return SwiGluNode::apply(gate, up);
}

at::Tensor drop_rows(const at::Tensor& x, const kernels::Dropout& dropout, int64_t first_row,
                     int64_t first_column) {
  if (dropout.threshold == 0) return x;
  if (!x.is_cpu())
    return x * kept_on_device(dropout,
                              at::arange(first_row, first_row + x.size(0),
                                         at::TensorOptions(at::kLong).device(x.device())),
                              first_column, x);
  const at::Tensor mask = at::empty({x.size(0), x.size(1)}, at::kFloat);
  kept_elements(dropout, first_row, first_column, mask);
  return x * mask.to(x.options());
}

at::Tensor drop_rows(const at::Tensor& x, const kernels::Dropout& dropout,
                     const std::vector<RowPiece>& pieces, int64_t first) {
  if (dropout.threshold == 0 || x.size(0) == 0) return x;
  std::vector<RowPiece> own;      // what x has of them; those that follow each other as one
  int64_t done = 0, skipped = 0;  // rows of x; of the pieces before them
  for (const RowPiece& piece : pieces) {
    const int64_t skips = std::min(first - skipped, piece.count);
    const int64_t count = std::min(piece.count - skips, x.size(0) - done);
    skipped += skips;
    done += count;
    if (!own.empty() && own.back().first + own.back().count == piece.first + skips)
      own.back().count += count;
    else if (count > 0)
      own.push_back({piece.first + skips, count});
  }
  if (own.size() == 1) return drop_rows(x, dropout, own[0].first);
  if (!x.is_cpu()) {
    std::vector<at::Tensor> rows;
    for (const RowPiece& piece : own)
      rows.push_back(at::arange(piece.first, piece.first + piece.count, at::kLong));
    return x * kept_on_device(dropout, device::copy_to(at::cat(rows), x.device()), 0, x);
  }
  const at::Tensor mask = at::empty({x.size(0), x.size(1)}, at::kFloat);
  int64_t row = 0;
  for (const RowPiece& piece : own) {
    kept_elements(dropout, piece.first, 0, mask.narrow(0, row, piece.count));
    row += piece.count;
  }
  return x * mask.to(x.options());
}

}  // namespace lockstep::inline v0::internal
