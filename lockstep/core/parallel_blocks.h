// A loop over many small pieces of work, by several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep {

// Calls work(begin, end) for blocks that together are 0..count-1, each once, on up to `threads`
// threads of which the caller's is one; 0: usable_cpu_count(). A block has at least `least` pieces
// (the last one excepted), so that few pieces are done by few threads. Blocks are taken in order,
// whoever is free next. Returns when all are done. What `work` throws is thrown here, by the first
// that threw; blocks that nobody had begun are then left out. Throws InvalidArgument for threads
// outside 0..1024 or a `least` below 1.
void parallel_blocks(int64_t count, int64_t least, int threads,
                     const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace lockstep
