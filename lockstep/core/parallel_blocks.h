// A loop over many small pieces of work, by several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep::inline v0 {

// Calls work(begin, end) for blocks that together are 0..count-1, each once, on up to `threads`
// threads including the caller's; 0: usable_cpu_count(). A block has at least `least` pieces
// (except the last one), so that few pieces are done by few threads. Blocks are taken in order by
// the next free thread. Returns when all are done. The first exception of `work` is rethrown here;
// blocks that have not begun are then skipped.
// Throws: InvalidArgument for threads outside 0..1024 or a `least` below 1.
void parallel_blocks(int64_t count, int64_t least, int threads,
                     const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace lockstep::inline v0
