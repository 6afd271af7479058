// memcpy() for memory that does not fit the caches: ordinary stores read their destination first,
// which takes half as long again; these stores bypass the caches.
#pragma once

#include <cstddef>

namespace lockstep::inline v0 {

// Copies `bytes`, between memory that does not overlap, with streaming stores where the processor
// has them, and with plain memcpy() otherwise. From 16 KiB on four pages are written side by side.
// Stores may still be pending when it returns: call stream_fence() before another thread is told of
// them.
void stream_copy(void* to, const void* from, size_t bytes);
// Orders them before this thread's later stores.
void stream_fence();

}  // namespace lockstep::inline v0
