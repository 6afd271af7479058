// Memory by whole pages: some to work in, and pages whose contents nobody needs any more.
#pragma once

#include <cstddef>

namespace lockstep {

// Gives the whole pages of [begin, begin + bytes) back to the system: they take no memory until
// somebody writes them again, and read as zeros meanwhile. The mapping and its addresses stay. Of
// memory that several processes have mapped, one gives the pages back for all of them. Memory that
// cannot be given back stays as it is.
void release_pages(void* begin, size_t bytes) noexcept;

// Zeros at first; begins at a page, in large pages where the system has them: what is written to it first
// then costs few faults.
class PageMemory {
 public:
  // Throws SystemError where there is no room for as much.
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

}  // namespace lockstep
