#include "lockstep/kernels/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>

namespace lockstep::inline v0::kernels {

void in_parallel(int64_t count, int64_t piece, int threads,
                 const std::function<void(int64_t begin, int64_t end)>& body) {
  const auto run = [&](int64_t begin) { body(begin, std::min(begin + piece, count)); };
  if (threads <= 1 || count <= piece) {
    for (int64_t begin = 0; begin < count; begin += piece) run(begin);
    return;
  }
  std::atomic<bool> failed = false;
  std::exception_ptr error;
  const auto guarded = [&](int64_t begin) {
    try {
      if (!failed.load()) run(begin);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  // No number of threads is given: libgomp rebuilds its pool whenever the number changes, and ATen
  // has set the same one.
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t begin = 0; begin < count; begin += piece) guarded(begin);
  if (error) std::rethrow_exception(error);
}

}  // namespace lockstep::inline v0::kernels
