// The checks that Communicator makes before it sends anything. All throw InvalidArgument with a
// text that begins with the operation's name. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0::checks {

// A tensor as rows along dim 0. A 0-dim tensor is one row.
struct Rows {
  int64_t rows = 1;
  int64_t width = 1;  // elements a row
  std::vector<int64_t> tail;

  explicit Rows(const at::Tensor& tensor);
  std::vector<int64_t> shape(int64_t n) const;  // the shape of n such rows
};

[[noreturn]] void refuse(Op op, const std::string& why);
void check_tensor(Op op, const at::Tensor& tensor, const char* name);
void check_rank(Op op, const char* name, int rank, int size);
void check_reduction(Op op, ReduceOp reduce, const at::Tensor& tensor);
void check_counts(Op op, std::span<const int64_t> counts, int size, const char* name);
// Checks that `whole` has `rows` rows like those of `part`.
void check_part(Op op, const at::Tensor& whole, const Rows& part, int64_t rows, const char* name);
void check_same_dtype(Op op, const at::Tensor& a, const at::Tensor& b);
// The number of rows in one of `size` equal parts.
int64_t divide_rows(Op op, const at::Tensor& tensor, int size);

int64_t total(std::span<const int64_t> counts);
std::vector<int64_t> in_elements(std::span<const int64_t> rows, int64_t width);

}  // namespace lockstep::inline v0::checks
