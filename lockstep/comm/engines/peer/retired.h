// Memory that a rank leaves behind while other ranks may have it open. Not a public header.
#pragma once

#include <functional>

namespace lockstep::inline v0::peer {

// CUDA does not define what happens to memory that is freed while another process has it open.
struct Retired {
  std::function<bool()> is_closed;  // whether all other ranks have closed it
  std::function<void()> free;
};

// Frees it once it is closed: now, or when this process leaves or retires other memory.
// Thread-safety: any thread.
void retire(Retired one);
void free_what_is_closed();

}  // namespace lockstep::inline v0::peer
