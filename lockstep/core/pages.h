// Pages of memory whose contents nobody needs any more.
#pragma once

#include <cstddef>

namespace lockstep {

// Gives the whole pages of [begin, begin + bytes) back to the system: they take no memory until
// somebody writes them again, and read as zeros meanwhile. The mapping and its addresses stay. Of
// memory that several processes have mapped, one gives the pages back for all of them. Memory that
// cannot be given back stays as it is.
void release_pages(void* begin, size_t bytes) noexcept;

}  // namespace lockstep
