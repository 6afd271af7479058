// What it costs to read a divided matrix in another division: float32 [4096, 11008], in memory.
//
//   build/release/bin/bench/checkpoint_boxes
//
// In rounds, each of all of these, one line a quantity with median and range: gigabytes read a second, over those that
// memcpy() copies of as many bytes in the same round.
//   columns of the whole     a quarter of the columns, of a matrix in one slice
//   whole of columns         the matrix, of four slices of its columns
//   columns of rows          a quarter of the columns, of 16 slices: four of the rows, each in four ranges (ZeRO)
//   rows as they were saved  a quarter of the rows, of four slices of rows: one stretch
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "lockstep/checkpoint/sliced_tensors.h"

namespace lockstep::inline v0 {
namespace {

constexpr int kRounds = 9;
constexpr int64_t kRows = 4096, kColumns = 11008, kParts = 4;

double seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TensorBox rows_of(int64_t part) {
  return {{kRows / kParts * part, 0}, {kRows / kParts * (part + 1), kColumns}};
}
TensorBox columns_of(int64_t part) {
  return {{0, kColumns / kParts * part}, {kRows, kColumns / kParts * (part + 1)}};
}

// The matrix in slices of `box`, each in `ranges` ranges.
SlicedTensor divided(const at::Tensor& values, TensorBox (*box)(int64_t part), int64_t ranges) {
  SlicedTensor tensor = slice_of({kRows, kColumns}, {kColumns, 1}, 0, values);
  tensor.slices.clear();
  const int64_t of_range = kRows * kColumns / kParts / ranges;
  for (int64_t part = 0; part < kParts; ++part) {
    for (int64_t range = 0; range < ranges; ++range)
      tensor.slices.push_back({range * of_range,
                               values.narrow(0, (part * ranges + range) * of_range, of_range),
                               box(part)});
  }
  return tensor;
}

struct Reading {
  const char* name;
  SlicedTensor from;
  TensorBox box;
  std::vector<double> ratios = {};
};

void run() {
  const at::Tensor values = at::arange(kRows * kColumns, at::kFloat);
  const SlicedTensor whole = slice_of({kRows, kColumns}, {kColumns, 1}, 0, values);
  std::vector<Reading> readings{
      {"columns of the whole", whole, columns_of(1)},
      {"whole of columns", divided(values, columns_of, 1), {}},
      {"columns of rows", divided(values, rows_of, 4), columns_of(1)},
      {"rows as they were saved", divided(values, rows_of, 1), rows_of(1)}};
  const at::Tensor out = at::empty({kRows * kColumns}, at::kFloat);
  for (int round = 0; round <= kRounds; ++round) {
    for (Reading& reading : readings) {
      const at::Tensor part = out.narrow(0, 0, numel_of(reading.box, reading.from.sizes));
      const double copy = seconds(
          [&] { std::memcpy(part.mutable_data_ptr(), values.const_data_ptr(), part.nbytes()); });
      const double read = seconds([&] { reading.from.read(reading.box, 0, part); });
      if (round > 0) reading.ratios.push_back(copy / read);  // before, memory is touched
    }
  }
  for (Reading& reading : readings) {
    std::sort(reading.ratios.begin(), reading.ratios.end());
    std::printf("%-24s %.2f (%.2f to %.2f) of memcpy\n", reading.name, reading.ratios[kRounds / 2],
                reading.ratios.front(), reading.ratios.back());
  }
}

}  // namespace
}  // namespace lockstep::inline v0

int main() {
  lockstep::run();
}
