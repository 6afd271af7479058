// Work on rows by OpenMP's threads, the pool that libtorch's operations use.
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep::inline v0::kernels {

// Calls body(begin, end) for [0, count) in pieces of `piece` (the last one smaller), which do not
// depend on the threads. With `threads` <= 1 it runs in order, on the caller's thread; otherwise on
// as many threads as OpenMP starts, in any order. Returns when all are done.
// Throws: what the first body threw.
void in_parallel(int64_t count, int64_t piece, int threads,
                 const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace lockstep::inline v0::kernels
