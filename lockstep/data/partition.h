// DataPartitioner: a data set split at random into parts, with the same indices as in the PyTorch
// tutorial "Writing Distributed Applications with PyTorch".
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// A value type; const methods may be called from any thread.
class LOCKSTEP_API DataPartitioner {
 public:
  // Shuffles 0..size-1 like CPython's random.Random(seed).shuffle() and cuts parts off the front:
  // part i has int(fractions[i] * size) samples, computed in doubles and rounded down like Python's
  // int(). Remaining samples belong to no part.
  // Throws: InvalidArgument for a size below 1, a fraction that is not finite and positive,
  // fractions that need more than `size` samples, and a part of 0 samples (more ranks than
  // samples).
  explicit DataPartitioner(int64_t size, const std::vector<double>& fractions = {0.7, 0.2, 0.1},
                           int64_t seed = 1234);

  // `parts` equal parts, one per rank.
  static DataPartitioner equal(int64_t size, int64_t parts, int64_t seed = 1234);

  int64_t parts() const { return static_cast<int64_t>(parts_.size()); }  // their number

  // The indices of part `part`, in shuffled order; valid as long as the partitioner.
  // Throws: InvalidArgument.
  const std::vector<int64_t>& use(int64_t part) const;

 private:
  std::vector<std::vector<int64_t>> parts_;
};

}  // namespace lockstep::inline v0::data
