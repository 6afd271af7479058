// memcpy() for memory that does not fit the caches: ordinary stores read their destination first, which takes half as
// long again; these go past the caches.
#pragma once

#include <cstddef>

namespace lockstep {

// Copies `bytes`, of memory that does not overlap, with streaming stores where the processor has them; plain memcpy()
// where not. From 16 KiB on four pages are written side by side. Stores may still be under way when it returns:
// stream_fence() before another thread is told of them.
void stream_copy(void* to, const void* from, size_t bytes);
// Orders them before what this thread stores afterwards.
void stream_fence();

}  // namespace lockstep
