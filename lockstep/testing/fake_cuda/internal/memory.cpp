#include "lockstep/testing/fake_cuda/internal/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::testing::fake {
namespace {

constexpr size_t kPage = 4096;
// Addresses are plenty: memory that was freed is handed out again as late as that allows.
constexpr size_t kAddressesPerByte = 4;

size_t whole_pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

DeviceMemory::DeviceMemory(int devices, size_t bytes_each)
    : bytes_each_(whole_pages(bytes_each)), devices_(static_cast<size_t>(devices)) {
  const size_t addresses = bytes_each_ * kAddressesPerByte;
  bytes_ = addresses * devices_.size();
  void* region =
      ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED)
    throw system_error("FakeCuda: no addresses for " + std::to_string(devices) + " devices of " +
                           std::to_string(bytes_each) + " bytes",
                       errno);
  base_ = static_cast<std::byte*>(region);
  for (size_t d = 0; d < devices_.size(); ++d) devices_[d].free[d * addresses] = addresses;
}

Block* DeviceMemory::allocate(int device, size_t bytes, int home, PlacePtr made) {
  bytes = whole_pages(bytes);
  const MutexLock lock(mutex_);
  Device& d = devices_[static_cast<size_t>(device)];
  if (d.used + bytes > bytes_each_) return nullptr;
  const auto fits = [&](const auto& piece) { return piece.second >= bytes; };
  auto it = std::find_if(d.free.lower_bound(d.next), d.free.end(), fits);
  if (it == d.free.end()) it = std::find_if(d.free.begin(), d.free.end(), fits);
  if (it == d.free.end()) return nullptr;
  const size_t offset = it->first;
  const size_t rest = it->second - bytes;
  d.free.erase(it);
  if (rest > 0) d.free[offset + bytes] = rest;
  d.next = offset + bytes;
  d.used += bytes;
  d.peak = std::max(d.peak, d.used);

  auto block = std::make_unique<Block>();
  block->data = base_ + offset;
  block->bytes = bytes;
  block->device = device;
  block->home = home;
  block->made = std::move(made);
  LOCKSTEP_CHECK(::mprotect(block->data, bytes, PROT_READ | PROT_WRITE) == 0,
                 "pages can be opened");
  std::memset(block->data, 0xff, bytes);
  LOCKSTEP_CHECK(::mprotect(block->data, bytes, PROT_NONE) == 0, "pages can be closed");
  Block* result = block.get();
  blocks_.emplace(result->data, std::move(block));
  return result;
}

void DeviceMemory::free(Block* block, const VectorClock& home_clock) noexcept {
  const MutexLock lock(mutex_);
  for (Access& use : block->history.beyond(home_clock)) {
    const bool recorded = std::find(block->recorded.begin(), block->recorded.end(),
                                    use.stamp.stream) != block->recorded.end();
    if (!recorded) freed_.emplace(block->home, FreedInUse{std::move(use), block->made});
  }
  ::mprotect(block->data, block->bytes, PROT_NONE);
  ::madvise(block->data, block->bytes, MADV_DONTNEED);
  Device& d = devices_[static_cast<size_t>(block->device)];
  d.used -= block->bytes;
  // Joined with what is free beside it.
  auto offset = static_cast<size_t>(block->data - base_);
  size_t bytes = block->bytes;
  auto after = d.free.lower_bound(offset);
  if (after != d.free.end() && after->first == offset + bytes) {
    bytes += after->second;
    after = d.free.erase(after);
  }
  if (after != d.free.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      d.free.erase(before);
    }
  }
  d.free[offset] = bytes;
  blocks_.erase(block->data);
}

std::vector<FreedInUse> DeviceMemory::reused(int home, const VectorClock& home_clock) {
  const MutexLock lock(mutex_);
  std::vector<FreedInUse> result;
  const auto [first, last] = freed_.equal_range(home);
  for (auto it = first; it != last; ++it)
    if (!home_clock.covers(it->second.use.stamp)) result.push_back(std::move(it->second));
  freed_.erase(first, last);
  return result;
}

Block* DeviceMemory::find(const void* address) const {
  if (!owns(address)) return nullptr;
  const MutexLock lock(mutex_);
  return find_locked(address);
}

Block* DeviceMemory::find_locked(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  auto it = blocks_.upper_bound(byte);
  if (it == blocks_.begin()) return nullptr;
  Block* block = std::prev(it)->second.get();
  return byte < block->data + block->bytes ? block : nullptr;
}

int DeviceMemory::device_of(const void* address) const {
  return static_cast<int>(static_cast<size_t>(static_cast<const std::byte*>(address) - base_) /
                          (bytes_each_ * kAddressesPerByte));
}

size_t DeviceMemory::used(int device) const {
  const MutexLock lock(mutex_);
  return devices_[static_cast<size_t>(device)].used;
}

size_t DeviceMemory::peak(int device) const {
  const MutexLock lock(mutex_);
  return devices_[static_cast<size_t>(device)].peak;
}

void DeviceMemory::reset_peak(int device) {
  const MutexLock lock(mutex_);
  Device& d = devices_[static_cast<size_t>(device)];
  d.peak = d.used;
}

void DeviceMemory::open_locked(Block& block) {
  if (block.opened++ > 0) return;
  LOCKSTEP_CHECK(::mprotect(block.data, block.bytes, PROT_READ | PROT_WRITE) == 0,
                 "pages can be opened");
}

void DeviceMemory::close_locked(Block& block) noexcept {
  if (block.opened > 0 && --block.opened == 0) ::mprotect(block.data, block.bytes, PROT_NONE);
}

void DeviceMemory::open(Block& block) {
  const MutexLock lock(mutex_);
  open_locked(block);
}

void DeviceMemory::close(Block& block) noexcept {
  const MutexLock lock(mutex_);
  close_locked(block);
}

bool DeviceMemory::open_at(const void* address) {
  const MutexLock lock(mutex_);
  Block* block = find_locked(address);
  if (block != nullptr) open_locked(*block);
  return block != nullptr;
}

void DeviceMemory::close_at(const void* address) noexcept {
  const MutexLock lock(mutex_);
  if (Block* block = find_locked(address)) close_locked(*block);
}

void DeviceMemory::open_once(Block& block) {
  const MutexLock lock(mutex_);
  ::mprotect(block.data, block.bytes, PROT_READ | PROT_WRITE);
}

std::optional<Access> DeviceMemory::add(Block& block, ByteRange bytes, Access access,
                                        const VectorClock& clock) {
  const MutexLock lock(mutex_);
  return block.history.add(bytes, std::move(access), clock);
}

void DeviceMemory::record_stream(Block& block, int stream) {
  const MutexLock lock(mutex_);
  if (std::find(block.recorded.begin(), block.recorded.end(), stream) == block.recorded.end())
    block.recorded.push_back(stream);
}

}  // namespace lockstep::testing::fake
