#include "lockstep/model/internal/head_products.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lockstep/kernels/parallel.h"
#include "lockstep/model/internal/layer_math.h"
#include "lockstep/model/internal/products.h"

namespace lockstep::inline v0::internal {
namespace {

// libtorch's products, which write where they are told.
class PlainHead final : public HeadProducts {
 public:
  using HeadProducts::HeadProducts;

  void logits(int64_t begin, const at::Tensor& logits) override {
    at::Tensor out = logits;
    at::mm_out(out, rows_.narrow(0, begin, logits.size(0)), weight_.t());
  }

  void gradients(int64_t begin, const at::Tensor& dlogits) override {
    const int64_t count = dlogits.size(0);
    if (wanted_.rows) {
      if (!drows.defined()) drows = at::empty_like(rows_);
      at::Tensor out = drows.narrow(0, begin, count);
      at::mm_out(out, dlogits, weight_);
    }
    if (!wanted_.weight) return;
    const at::Tensor x = rows_.narrow(0, begin, count);
    if (dweight.defined())
      dweight.addmm_(dlogits.t(), x);
    else
      dweight = at::mm(dlogits.t(), x);
  }
};

int64_t tiled(int64_t size) {
  return (size + kTileRows - 1) / kTileRows * kTileRows;
}

// Factors in bfloat16, results in float32, which the weight's gradient is added up in.
class ShortHead final : public HeadProducts {
 public:
  ShortHead(const at::Tensor& rows, const at::Tensor& weight, Wanted wanted)
      : HeadProducts(rows, weight, wanted), short_(rounded({weight})) {
    columns_ = panels_of_transposed(short_);
    if (wanted.rows) rows_panels_ = panels_of(short_);
    if (rows_.size(1) % kTileRows == 0) return;
    // What a product reads behind a row's end is 0.
    left_ = at::zeros({rows_.size(0), tiled(rows_.size(1))}, at::kBFloat16);
    left_.narrow(1, 0, rows_.size(1)).copy_(rows_);
  }

  void logits(int64_t begin, const at::Tensor& logits) override {
    const at::Tensor& left = left_.defined() ? left_ : rows_;
    float_product(logits, left.narrow(0, begin, logits.size(0)), columns_, {});
  }

  void gradients(int64_t begin, const at::Tensor& dlogits) override {
    const int64_t count = dlogits.size(0), width = rows_.size(1);
    round_chunk(dlogits);
    const at::Tensor d = chunk_.narrow(0, 0, count);
    if (wanted_.rows) {
      if (!drows.defined()) drows = at::empty_like(rows_);
      const at::Tensor sums = at::empty({count, rows_panels_.columns}, at::kFloat);
      float_product(sums, d, rows_panels_, {.rows_at_a_time = 64});
      drows.narrow(0, begin, count).copy_(sums.narrow(1, 0, width));
    }
    if (!wanted_.weight) return;
    const at::Tensor down = empty_columns(count, weight_.size(0));
    turn_chunk(d.narrow(1, 0, weight_.size(0)), down);
    const Panels x = panels_of(rows_.narrow(0, begin, count));
    const bool adds = sums_.defined();
    if (!adds) sums_ = at::empty({weight_.size(0), x.columns}, at::kFloat);
    float_product(sums_, down, x, {.adds = adds});
    dweight = x.columns == width ? sums_ : sums_.narrow(1, 0, width);
  }

 private:
  // The chunk's gradient in bfloat16, its rows padded by zeros to whole tiles.
  void round_chunk(const at::Tensor& dlogits) {
    const int64_t count = dlogits.size(0), width = dlogits.size(1);
    if (!chunk_.defined()) chunk_ = at::zeros({count, tiled(width)}, at::kBFloat16);
    const float* const from = dlogits.const_data_ptr<float>();
    auto* const to = static_cast<uint16_t*>(chunk_.data_ptr());
    kernels::in_parallel(count, 8, at::get_num_threads(), [&](int64_t begin, int64_t end) {
      kernels::kernels().round_rows(from + begin * dlogits.stride(0), dlogits.stride(0),
                                    to + begin * chunk_.stride(0), chunk_.stride(0), end - begin,
                                    width);
    });
  }

  static void turn_chunk(const at::Tensor& from, const at::Tensor& to) {
    const auto* const source = static_cast<const uint16_t*>(from.const_data_ptr());
    auto* const target = static_cast<uint16_t*>(to.data_ptr());
    constexpr int64_t kColumns = 1024;
    kernels::in_parallel(
        from.size(1), kColumns, at::get_num_threads(), [&](int64_t begin, int64_t end) {
          kernels::kernels().transpose(
              {kernels::Type::kBFloat16, source + begin, from.size(0), end - begin, from.stride(0)},
              target + begin * to.stride(0), to.stride(0));
        });
  }

  at::Tensor short_, left_, chunk_, sums_;
  Panels columns_, rows_panels_;
};

}  // namespace

int64_t logits_pitch(int64_t vocabulary, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kBFloat16 ? tiled(vocabulary) : vocabulary;
}

std::unique_ptr<HeadProducts> head_products(const at::Tensor& rows, const at::Tensor& weight,
                                            HeadProducts::Wanted wanted, Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kBFloat16) return std::make_unique<ShortHead>(rows, weight, wanted);
  return std::make_unique<PlainHead>(rows, weight, wanted);
}

}  // namespace lockstep::inline v0::internal
