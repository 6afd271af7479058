#include "lockstep/comm/internal/communicator_checks.h"

#include <numeric>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::checks {

namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::string text = "[";
  for (const int64_t dim : tensor.sizes())
    text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

}  // namespace

void refuse(Op op, const std::string& why) {
  throw InvalidArgument(std::string(to_string(op)) + ": " + why);
}

void check_tensor(Op op, const at::Tensor& tensor, const char* name) {
  if (!tensor.defined()) refuse(op, std::string("`") + name + "` is undefined; give it a tensor");
  if (!is_supported_dtype(tensor.scalar_type())) {
    refuse(op, std::string("dtype ") + c10::toString(tensor.scalar_type()) + " of `" + name +
                   "` is not carried; convert it, or view it as bytes");
  }
}

void check_rank(Op op, const char* name, int rank, int size) {
  if (rank < 0 || rank >= size) {
    refuse(op, std::string(name) + " " + std::to_string(rank) +
                   " is not a rank of this group (0 to " + std::to_string(size - 1) + ")");
  }
}

void check_reduction(Op op, ReduceOp reduce, const at::Tensor& tensor) {
  if (is_valid_reduction(reduce, tensor.scalar_type())) return;
  refuse(op, std::string(to_string(reduce)) + " is not defined on " +
                 dtype_name(tensor.scalar_type()) +
                 (reduce == ReduceOp::kAvg ? "; sum, or convert to float32 first"
                                           : "; it needs integers or bool"));
}

Rows::Rows(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return;
  rows = tensor.size(0);
  tail.assign(tensor.sizes().begin() + 1, tensor.sizes().end());
  for (const int64_t dim : tail) width *= dim;
}

std::vector<int64_t> Rows::shape(int64_t n) const {
  std::vector<int64_t> result{n};
  result.insert(result.end(), tail.begin(), tail.end());
  return result;
}

int64_t total(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::vector<int64_t> in_elements(std::span<const int64_t> rows, int64_t width) {
  std::vector<int64_t> result(rows.begin(), rows.end());
  for (int64_t& count : result) count *= width;
  return result;
}

void check_counts(Op op, std::span<const int64_t> counts, int size, const char* name) {
  if (static_cast<int>(counts.size()) != size) {
    refuse(op, std::string("`") + name + "` has " + std::to_string(counts.size()) +
                   " entries for " + std::to_string(size) + " ranks");
  }
  for (const int64_t count : counts) {
    if (count < 0)
      refuse(op, std::string("`") + name + "` has a negative entry: " + std::to_string(count));
  }
}

void check_part(Op op, const at::Tensor& whole, const Rows& part, int64_t rows, const char* name) {
  const Rows all(whole);
  if (all.rows != rows || all.tail != part.tail) {
    refuse(op, std::string("`") + name + "` has shape " + shape_text(whole) + ", expected " +
                   std::to_string(rows) + " rows of the other tensor's shape");
  }
}

void check_same_dtype(Op op, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type()) {
    refuse(op, std::string("input is ") + dtype_name(a.scalar_type()) + " but output is " +
                   dtype_name(b.scalar_type()));
  }
}

int64_t divide_rows(Op op, const at::Tensor& tensor, int size) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (rows % size != 0) {
    refuse(op, "dim 0 of shape " + shape_text(tensor) + " does not divide by " +
                   std::to_string(size) + " ranks; use the v-form for unequal parts");
  }
  return rows / size;
}

}  // namespace lockstep::inline v0::checks
