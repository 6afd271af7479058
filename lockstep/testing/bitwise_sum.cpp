#include "lockstep/testing/bitwise_sum.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "lockstep/core/check.h"

namespace lockstep::inline v0::testing {
namespace {

// 24 bits times a power of two from 2^-23 to 2^-8, either sign: exact, and rounded when added.
float drawn(int rank, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ULL +
               static_cast<uint64_t>(rank + 1) * 0xd1b54a32d192ed03ULL;
  x ^= x >> 32;
  x *= 0x9e3779b97f4a7c15ULL;
  x ^= x >> 29;
  const auto mantissa = static_cast<float>(x & 0xffffff);
  const float value = std::ldexp(mantissa, static_cast<int>((x >> 24) % 16) - 23);
  return (x >> 40) % 2 == 0 ? value : -value;
}

// Sums up the arguments from the first to the last, or the other way round.
at::Tensor sum_of(const std::vector<at::Tensor>& arguments, bool backwards) {
  at::Tensor sum = at::empty(arguments.front().sizes(), at::kFloat);
  auto* const out = sum.mutable_data_ptr<float>();
  const size_t size = arguments.size();
  for (size_t step = 0; step < size; ++step) {
    const auto* const next = arguments[backwards ? size - 1 - step : step].const_data_ptr<float>();
    for (int64_t i = 0; i < sum.numel(); ++i) out[i] = step == 0 ? next[i] : out[i] + next[i];
  }
  return sum;
}

uint64_t hash_of(const at::Tensor& tensor) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto* const data = tensor.const_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    hash ^= std::bit_cast<uint32_t>(data[i]);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

// The first element of other bits; -1: none.
int64_t first_difference(const at::Tensor& a, const at::Tensor& b) {
  const auto* const left = a.const_data_ptr<float>();
  const auto* const right = b.const_data_ptr<float>();
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (std::bit_cast<uint32_t>(left[i]) != std::bit_cast<uint32_t>(right[i])) return i;
  }
  return -1;
}

void tell(std::ostringstream& text, const char* what, const at::Tensor& got,
          const at::Tensor& expected) {
  const int64_t at = first_difference(got, expected);
  if (at < 0) return;
  int64_t differing = 0;
  const auto* const left = got.const_data_ptr<float>();
  const auto* const right = expected.const_data_ptr<float>();
  for (int64_t i = at; i < got.numel(); ++i)
    differing += std::bit_cast<uint32_t>(left[i]) != std::bit_cast<uint32_t>(right[i]) ? 1 : 0;
  text << "; " << what << " differs in " << differing << " elements, first in [" << at
       << "]: " << std::hexfloat << left[at] << " where " << right[at] << " was expected"
       << std::defaultfloat;
}

}  // namespace

BitwiseSum::BitwiseSum(int size, int64_t count) {
  for (int rank = 0; rank < size; ++rank) {
    at::Tensor argument = at::empty({count}, at::kFloat);
    auto* const data = argument.mutable_data_ptr<float>();
    for (int64_t i = 0; i < count; ++i) data[i] = drawn(rank, i);
    hashes_.push_back(hash_of(argument));
    arguments_.push_back(std::move(argument));
  }
  sum_ = sum_of(arguments_, false);
  LOCKSTEP_CHECK(size < 3 || count < 100 || first_difference(sum_, sum_of(arguments_, true)) >= 0,
                 "the order of summation shows in the result");
}

std::string BitwiseSum::check(Communicator& comm) const {
  const auto rank = static_cast<size_t>(comm.rank());
  const at::Tensor& argument = arguments_[rank];
  const at::Tensor tensor = argument.clone();
  const bool drawn_before = hash_of(argument) == hashes_[rank];
  const bool given = hash_of(tensor) == hashes_[rank];
  comm.all_reduce(tensor);
  const bool drawn_after = hash_of(argument) == hashes_[rank];
  if (drawn_before && given && drawn_after && first_difference(tensor, sum_) < 0) return {};
  std::ostringstream text;
  text << "rank " << rank << " of " << arguments_.size() << ", all_reduce sum float32 x "
       << argument.numel();
  if (!drawn_before) text << "; its argument had changed before the call";
  if (drawn_before && !given) text << "; the copy that was reduced was not its argument";
  if (drawn_before && !drawn_after) text << "; its argument changed during the call";
  tell(text, "the result", tensor, sum_);
  return text.str();
}

}  // namespace lockstep::inline v0::testing
