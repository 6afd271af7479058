// What ranks leave behind that others may have open. Not a public header.
#pragma once

#include <functional>

namespace lockstep::peer {

// CUDA leaves undefined what becomes of memory that is freed while another process has it open.
struct Retired {
  std::function<bool()> is_closed;  // by all others
  std::function<void()> free;
};

// Frees it once it is closed: now, or when this process leaves or makes something else. From any
// thread.
void retire(Retired one);
void free_what_is_closed();

}  // namespace lockstep::peer
