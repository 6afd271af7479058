// Every operation of a Communicator against a single-process oracle. One suite for all backends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0::testing {

// The options of run_operation_suite().
struct SuiteOptions {
  std::vector<at::ScalarType> dtypes = {};    // empty: all ten
  std::vector<int64_t> sizes = {0, 1, 1009};  // elements of a tensor
  int64_t long_bytes = 300'007;  // and one size of about this many bytes: longer than a chunk
  bool every_root = true;        // else the last rank only
  at::Device device = at::kCPU;  // whose tensors
};

// What a suite found.
struct SuiteReport {
  int64_t checked = 0;                // comparisons made
  std::vector<std::string> failures;  // "all_reduce sum float32 x 1009: element 3 is 5, expected 4"
};

// Runs every operation x dtype x size x root x reduction, equal and unequal parts, contiguous and
// not, blocking and i-forms, messages included, and compares bit by bit. Does not throw for a wrong
// result. Collective. `all_gather` of the operation's exact inputs is computed locally: nothing
// that is under test is trusted.
LOCKSTEP_API SuiteReport run_operation_suite(Communicator& comm, const SuiteOptions& options = {});

// The options of run_apart_suite().
struct ApartOptions {
  int pending = 3000;      // operations of several kinds, at once
  int in_a_row = 100'000;  // broadcasts, of which at most `apart` are pending
  int apart = 4000;        // pending ones of a row, at most
  bool groups = false;     // those that are pending at once are of groups made by split() as well
};

// The same for ranks that are far apart: the last one comes to the first operation when rank 0 has
// called all `pending`, and to the row when that one has called `apart`. Collective.
LOCKSTEP_API SuiteReport run_apart_suite(Communicator& comm, const ApartOptions& options = {});

}  // namespace lockstep::inline v0::testing
