#include "lockstep/testing/fake_cuda/internal/pinned.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep::inline v0::testing::fake {
namespace {

constexpr size_t kPinnedPage = 4096;

// The piece that holds this byte, or nullptr.
template <typename Pieces>
auto* piece_at(Pieces& pieces, const void* data) {
  const auto* byte = static_cast<const std::byte*>(data);
  const auto it = std::find_if(pieces.begin(), pieces.end(), [&](const auto& piece) {
    return byte >= piece.first && byte < piece.first + piece.second.bytes;
  });
  return it == pieces.end() ? nullptr : &*it;
}

}  // namespace

void* PinnedMemory::allocate(size_t bytes) {
  const size_t pages = (bytes + kPinnedPage - 1) / kPinnedPage * kPinnedPage;
  void* data = ::mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  const MutexLock lock(mutex_);
  pieces_[static_cast<std::byte*>(data)].bytes = pages;
  return data;
}

void PinnedMemory::free(void* data) noexcept {
  size_t bytes = 0;
  {
    const MutexLock lock(mutex_);
    const auto it = pieces_.find(static_cast<std::byte*>(data));
    if (it == pieces_.end()) return;
    bytes = it->second.bytes;
    pieces_.erase(it);
  }
  ::munmap(data, bytes);
}

void PinnedMemory::protect(const Pieces::value_type& piece) noexcept {
  const auto& [data, state] = piece;
  const bool written = std::any_of(state.copies.begin(), state.copies.end(),
                                   [](const Copy& copy) { return copy.to_it; });
  int allowed = PROT_READ | PROT_WRITE;
  if (state.opened == 0 && written)
    allowed = PROT_NONE;
  else if (state.opened == 0 && !state.copies.empty())
    allowed = PROT_READ;
  ::mprotect(data, state.bytes, allowed);
}

bool PinnedMemory::holds(const void* data) const {
  const MutexLock lock(mutex_);
  return piece_at(pieces_, data) != nullptr;
}

bool PinnedMemory::open(const void* data) {
  const MutexLock lock(mutex_);
  auto* piece = piece_at(pieces_, data);
  if (piece == nullptr) return false;
  ++piece->second.opened;
  protect(*piece);
  return true;
}

void PinnedMemory::close(const void* data) noexcept {
  const MutexLock lock(mutex_);
  auto* piece = piece_at(pieces_, data);
  if (piece == nullptr) return;
  --piece->second.opened;
  protect(*piece);
}

void PinnedMemory::copying(const void* data, const Stamp& stamp, PlacePtr place, bool to_it) {
  const MutexLock lock(mutex_);
  if (auto* piece = piece_at(pieces_, data)) {
    piece->second.copies.push_back({stamp, std::move(place), to_it});
    protect(*piece);
  }
}

void PinnedMemory::settle(const VectorClock& clock) noexcept {
  const MutexLock lock(mutex_);
  for (auto& piece : pieces_) {
    const auto over = [&](const Copy& copy) { return clock.covers(copy.stamp); };
    if (std::erase_if(piece.second.copies, over) > 0) protect(piece);
  }
}

PlacePtr PinnedMemory::disturbed(const void* address, bool forget) {
  const MutexLock lock(mutex_);
  auto* piece = piece_at(pieces_, address);
  if (piece == nullptr || piece->second.copies.empty()) return nullptr;
  PlacePtr place = piece->second.copies.front().place;
  if (forget) {
    piece->second.copies.clear();
    protect(*piece);
  }
  return place;
}

PinnedMemory& pinned_memory() {
  static auto* const memory = new PinnedMemory;  // tensors may end after main()
  return *memory;
}

}  // namespace lockstep::inline v0::testing::fake
