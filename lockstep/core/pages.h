// Memory in whole pages: working memory, and pages whose contents are no longer needed.
#pragma once

#include <cstddef>

namespace lockstep::inline v0 {

// Returns the whole pages of [begin, begin + bytes) to the system: they take no memory until they
// are written again, and read as zeros meanwhile. The mapping and its addresses stay. For memory
// that several processes have mapped, one returns the pages for all of them. Memory that cannot be
// returned is unchanged.
void release_pages(void* begin, size_t bytes) noexcept;

// Zeros at first; begins at a page, in large pages where the system has them, so that the first
// writes cost few faults.
class PageMemory {
 public:
  // Throws SystemError where there is not enough memory.
  explicit PageMemory(size_t bytes);
  ~PageMemory();
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace lockstep::inline v0
