#include "lockstep/cli/engine/diff/tensor_diff.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>

namespace lockstep::inline v0::engine {
namespace {

using Kind = TensorDifference::Kind;

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.sizes();
  return out.str();
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.is_contiguous() && b.is_contiguous() &&
         (a.nbytes() == 0 ||  // an empty tensor may have no memory
          std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

// Complex numbers count as two.
at::Tensor flat_values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().cpu().contiguous().view({-1});
  return flat.is_complex() ? at::view_as_real(flat).view({-1}) : flat;
}

double finite_or_inf(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
}

void compare_piece(const at::Tensor& a, const at::Tensor& b, double tolerance,
                   TensorDifference* out) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  // 64-bit integers do not fit doubles.
  const bool integers = a.scalar_type() == at::kLong && b.scalar_type() == at::kLong;
  at::Tensor differs =
      integers ? a.ne(b) : x.ne(y).logical_and(x.isnan().logical_and(y.isnan()).logical_not());
  const at::Tensor distance = (x - y).abs(), size = at::maximum(x.abs(), y.abs());
  if (tolerance > 0) {
    const at::Tensor near =
        distance.le(size.clamp_min(1) * tolerance).logical_and(distance.isfinite());
    differs = differs.logical_and(near.logical_not());
  }
  const int64_t count = differs.sum().item<int64_t>();
  if (count == 0) return;
  out->different += count;
  const at::Tensor distances = distance.masked_select(differs);
  const at::Tensor relative = distances / size.masked_select(differs);
  out->max_abs = std::max(out->max_abs, finite_or_inf(distances.max().item<double>()));
  out->max_rel = std::max(out->max_rel, finite_or_inf(relative.max().item<double>()));
}

void compare_values(const at::Tensor& a, const at::Tensor& b, double tolerance,
                    TensorDifference* out) {
  constexpr int64_t kPiece = 1 << 18;
  out->elements = a.numel();
  if (same_bytes(a, b)) return;
  const at::Tensor x = flat_values(a), y = flat_values(b);
  if (x.numel() != y.numel()) {  // a complex and a real tensor
    out->different = out->elements;
    out->max_abs = out->max_rel = std::numeric_limits<double>::infinity();
    return;
  }
  for (int64_t at = 0; at < x.numel(); at += kPiece)
    compare_piece(x.slice(0, at, at + kPiece), y.slice(0, at, at + kPiece), tolerance, out);
}

TensorDifference compare(const std::string& name, const at::Tensor& a, const at::Tensor& b,
                         double tolerance) {
  TensorDifference difference{.name = name, .a = {}, .b = {}};
  if (a.sizes() != b.sizes()) {
    difference.kind = Kind::kShape;
    difference.a = shape_of(a);
    difference.b = shape_of(b);
    return difference;
  }
  if (a.scalar_type() != b.scalar_type()) {
    difference.kind = Kind::kDtype;
    difference.a = c10::toString(a.scalar_type());
    difference.b = c10::toString(b.scalar_type());
  }
  compare_values(a, b, tolerance, &difference);
  return difference;
}

}  // namespace

TensorsDiff diff_tensors(const NamedTensors& a, const NamedTensors& b, double tolerance) {
  const at::NoGradGuard no_grad;
  struct Pair {
    const at::Tensor *a = nullptr, *b = nullptr;
  };
  std::map<std::string, Pair> pairs;
  for (const auto& [name, tensor] : a) pairs[name].a = &tensor;
  for (const auto& [name, tensor] : b) pairs[name].b = &tensor;
  TensorsDiff diff;
  for (const auto& [name, pair] : pairs) {
    if (pair.a == nullptr || pair.b == nullptr) {
      diff.differences.push_back({.name = name,
                                  .kind = pair.a == nullptr ? Kind::kMissingInA : Kind::kMissingInB,
                                  .a = {},
                                  .b = {}});
      continue;
    }
    ++diff.compared;
    TensorDifference difference = compare(name, *pair.a, *pair.b, tolerance);
    diff.max_abs = std::max(diff.max_abs, difference.max_abs);
    diff.max_rel = std::max(diff.max_rel, difference.max_rel);
    if (difference.kind != Kind::kValues || difference.different > 0)
      diff.differences.push_back(std::move(difference));
  }
  return diff;
}

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::kMissingInA:
      return "missing_in_a";
    case Kind::kMissingInB:
      return "missing_in_b";
    case Kind::kShape:
      return "shape";
    case Kind::kDtype:
      return "dtype";
    default:
      return "values";
  }
}

}  // namespace lockstep::inline v0::engine
