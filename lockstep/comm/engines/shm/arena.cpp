#include "lockstep/comm/engines/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::shm {
namespace {

constexpr uint64_t kSpan = uint64_t{1} << 40;  // per rank: address space in the file, not memory
constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr size_t kControlBytes = size_t{1} << 20;  // one flag per allocation
constexpr int kPopulateWrite = 23;                 // MADV_POPULATE_WRITE, Linux 5.14
constexpr int kCollapse = 25;                      // MADV_COLLAPSE, Linux 6.1
constexpr int kCollapses = 4;                      // attempts

// Blocks begin at huge pages of the file; their memory does so, too, because only then one entry of
// the page table can map such a page.
std::byte* map(int fd, uint64_t offset, size_t bytes) {
  const auto failure = [bytes] {
    return system_error("mmap of " + std::to_string(bytes) + " bytes of symmetric memory", errno);
  };
  const size_t room = bytes + kHugePage;
  void* reserved =
      ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw failure();
  auto* const begin = static_cast<std::byte*>(reserved);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  std::byte* const memory = begin + before;
  if (::mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             static_cast<off_t>(offset)) == MAP_FAILED) {
    const auto error = failure();
    ::munmap(reserved, room);
    throw error;
  }
  if (before > 0) ::munmap(begin, before);
  ::munmap(memory + bytes, kHugePage - before);
  return memory;
}

// Makes the pages of `memory` exist, and maps them. Older kernels cannot; their pages appear when
// they are touched.
void populate(std::byte* memory, size_t bytes) {
  if (::madvise(memory, bytes, kPopulateWrite) != 0 && (errno == ENOMEM || errno == EFAULT))
    throw system_error("populating " + std::to_string(bytes) + " bytes of symmetric memory", errno);
}

// The same for memory that has no pages yet: huge ones where they are whole, also on a system that
// gives shared memory none of itself (shmem_enabled), because 4 KiB pages of a model's gradients
// are more than a processor remembers the addresses of. Only a page of which a part exists can
// collapse into a huge one. Kernels before 6.1 have huge pages if the system allows them.
void populate_huge(std::byte* memory, size_t bytes) {
  const size_t whole = bytes / kHugePage * kHugePage;
  if (whole > 0) ::madvise(memory, whole, MADV_HUGEPAGE);
  for (size_t at = 0; at < whole; at += kHugePage) populate(memory + at, 1);
  // A page that the kernel itself uses at this moment cannot collapse.
  for (int i = 0; whole > 0 && i < kCollapses; ++i) {
    if (::madvise(memory, whole, kCollapse) == 0 || (errno != EAGAIN && errno != EBUSY)) break;
  }
  populate(memory, bytes);
}

}  // namespace

UniqueFd Arena::make_memory(int size) {
  UniqueFd fd(::memfd_create("lockstep-symmetric", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw system_error("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(kSpan * static_cast<uint64_t>(size))) != 0)
    throw system_error("ftruncate of symmetric memory", errno);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw system_error("F_ADD_SEALS", errno);
  return fd;
}

Arena::Arena(UniqueFd memory, int rank, int size)
    : memory_(std::move(memory)), rank_(rank), size_(size), next_offset_(kHugePage) {
  static_assert(kControlBytes <= kHugePage);
  for (int r = 0; r < size; ++r)
    controls_.push_back(map(memory_.get(), kSpan * static_cast<uint64_t>(r), kControlBytes));
}

Arena::~Arena() {
  for (auto& [id, block] : blocks_) {
    for (std::byte* base : block.bases)
      if (base != nullptr) ::munmap(base, block.bytes);
  }
  for (std::byte* control : controls_) ::munmap(control, kControlBytes);
}

std::atomic<uint8_t>* Arena::released_flags(int rank) const {
  return reinterpret_cast<std::atomic<uint8_t>*>(controls_[static_cast<size_t>(rank)]);
}

// Takes the next place in every span, whether or not it can be mapped.
Arena::Block Arena::next_block(int64_t bytes, bool shared) {
  LOCKSTEP_CHECK(bytes > 0, "an allocation has bytes");
  reap();
  const uint32_t id = next_id_++;
  const uint64_t offset = next_offset_;
  const auto size =
      static_cast<size_t>((static_cast<uint64_t>(bytes) + kHugePage - 1) / kHugePage * kHugePage);
  if (id >= kControlBytes || size > kSpan - next_offset_) {
    throw system_error("this communicator has no symmetric memory left after " +
                           std::to_string(id) + " allocations; reuse tensors, or make a new one",
                       ENOSPC);
  }
  next_offset_ += size;
  return {.id = id,
          .offset = offset,
          .bytes = size,
          .used = shared ? size : static_cast<size_t>(bytes),
          .bases = std::vector<std::byte*>(static_cast<size_t>(size_)),
          .shared = shared};
}

std::byte* Arena::keep(Block block, std::byte* own) {
  auto& names = block.shared ? shared_ : own_;
  names.emplace(own, block.id);
  live_ = own_.size();
  const uint32_t id = block.id;
  blocks_.emplace(id, std::move(block));
  return own;
}

// Undoes a failed allocation.
void Arena::drop(const Block& block) noexcept {
  for (std::byte* base : block.bases)
    if (base != nullptr) ::munmap(base, block.bytes);
  released_flags(rank_)[block.id].store(1, std::memory_order_release);
}

std::byte* Arena::allocate(int64_t bytes) {
  const MutexLock lock(mutex_);
  Block block = next_block(bytes, /*shared=*/false);
  try {
    for (int r = 0; r < size_; ++r)
      block.bases[static_cast<size_t>(r)] =
          map(memory_.get(), kSpan * static_cast<uint64_t>(r) + block.offset, block.bytes);
    std::byte* own = block.bases[static_cast<size_t>(rank_)];
    populate_huge(own, block.used);
    return keep(block, own);
  } catch (...) {
    drop(block);
    throw;
  }
}

std::byte* Arena::allocate_shared(int64_t bytes) {
  const MutexLock lock(mutex_);
  Block block = next_block(bytes, /*shared=*/true);
  try {
    std::byte* memory = map(memory_.get(), block.offset, block.bytes);
    block.bases[static_cast<size_t>(rank_)] = memory;
    // Pages belong to the node of the rank that touches them first.
    const uint64_t pages = block.bytes / kHugePage;
    const auto page_of = [&](int rank) {
      return pages * static_cast<uint64_t>(rank) / static_cast<uint64_t>(size_) * kHugePage;
    };
    const uint64_t from = page_of(rank_), to = page_of(rank_ + 1);
    if (to > from) populate_huge(memory + from, to - from);
    return keep(block, memory);
  } catch (...) {
    drop(block);
    throw;
  }
}

void Arena::warm(const std::byte* memory) {
  const MutexLock lock(mutex_);
  const auto shared = shared_.find(memory);
  if (shared != shared_.end()) {
    const Block& block = blocks_.at(shared->second);
    populate(block.bases[static_cast<size_t>(rank_)], block.used);
    return;
  }
  const auto it = own_.find(memory);
  LOCKSTEP_CHECK(it != own_.end(), "what is warmed was allocated here");
  Block& block = blocks_.at(it->second);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) populate(block.bases[static_cast<size_t>(r)], block.used);
  }
}

// Frees the pages of a rank's part of the file.
void Arena::give_back(const Block& block, int rank) noexcept {
  ::fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(kSpan * static_cast<uint64_t>(rank) + block.offset),
              static_cast<off_t>(block.bytes));
}

void Arena::release(std::byte* memory) noexcept {
  const MutexLock lock(mutex_);
  auto it = own_.find(memory);
  auto& names = it != own_.end() ? own_ : shared_;
  if (it == own_.end()) it = shared_.find(memory);
  if (it == names.end()) return;
  Block& block = blocks_.at(it->second);
  names.erase(it);
  live_ = own_.size();
  ::munmap(memory, block.bytes);
  block.bases[static_cast<size_t>(rank_)] = nullptr;
  block.released = true;
  // Peers keep their mappings until they release them, too; the pages are freed now, unless they
  // are shared.
  if (!block.shared) give_back(block, rank_);
  released_flags(rank_)[block.id].store(1, std::memory_order_release);
  reap();
}

// Unmaps the blocks that all ranks have released. mutex_ is held.
void Arena::reap() {
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    Block& block = it->second;
    bool all = block.released;
    for (int r = 0; all && r < size_; ++r)
      all = released_flags(r)[block.id].load(std::memory_order_acquire) != 0;
    if (!all) {
      ++it;
      continue;
    }
    for (std::byte* base : block.bases)
      if (base != nullptr) ::munmap(base, block.bytes);
    // The first rank that sees it frees them; a place is never reused.
    if (block.shared) give_back(block, 0);
    it = blocks_.erase(it);
  }
}

std::optional<rounds::Window> Arena::find(const std::byte* memory, int64_t bytes) const {
  if (live_.load(std::memory_order_acquire) == 0) return std::nullopt;
  const MutexLock lock(mutex_);
  auto it = own_.upper_bound(memory);
  if (it == own_.begin()) return std::nullopt;
  --it;
  const Block& block = blocks_.at(it->second);
  const auto offset = static_cast<uint64_t>(memory - it->first);
  if (offset + static_cast<uint64_t>(bytes) > block.bytes) return std::nullopt;
  return rounds::Window{block.id, offset};
}

std::byte* Arena::peer(int rank, rounds::Window window) const {
  const MutexLock lock(mutex_);
  const auto it = blocks_.find(window.id);
  if (it == blocks_.end()) return nullptr;
  std::byte* base = it->second.bases[static_cast<size_t>(rank)];
  return base == nullptr ? nullptr : base + window.offset;
}

}  // namespace lockstep::inline v0::shm
