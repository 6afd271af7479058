#include "lockstep/testing/fake_cuda/internal/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::testing::fake {
namespace {

// Addresses are plenty: memory that was freed is handed out again as late as that allows.
constexpr size_t kAddressesPerByte = 4;

// Blocks are opened and shut page by page; some ARM kernels have pages of 64 KiB.
size_t whole_pages(size_t bytes) {
  static const auto kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

DeviceMemory::DeviceMemory(int devices, size_t bytes_each)
    : file_(::memfd_create("the memory of FakeCuda's devices", MFD_CLOEXEC)),
      bytes_each_(whole_pages(bytes_each)) {
  const size_t addresses = bytes_each_ * kAddressesPerByte;
  bytes_ = addresses * static_cast<size_t>(devices);
  void* region = MAP_FAILED;
  if (file_.get() >= 0 && ::ftruncate(file_.get(), static_cast<off_t>(bytes_)) == 0)
    region = ::mmap(nullptr, bytes_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file_.get(), 0);
  if (region == MAP_FAILED)
    throw system_error("FakeCuda: no addresses for " + std::to_string(devices) + " devices of " +
                           std::to_string(bytes_each) + " bytes",
                       errno);
  base_ = static_cast<std::byte*>(region);
  for (size_t d = 0; d < static_cast<size_t>(devices); ++d)
    devices_.push_back({.addresses = AddressRanges(d * addresses, addresses)});
}

Block* DeviceMemory::add_block(Block block) {
  auto owned = std::make_unique<Block>(std::move(block));
  Block* result = owned.get();
  blocks_.emplace(result->data, std::move(owned));
  return result;
}

Block* DeviceMemory::allocate(int device, size_t bytes, int home, PlacePtr made) {
  bytes = whole_pages(bytes);
  const MutexLock lock(mutex_);
  Device& d = devices_[static_cast<size_t>(device)];
  if (d.used + bytes > bytes_each_) return nullptr;
  const std::optional<size_t> offset = d.addresses.take(bytes);
  if (!offset) return nullptr;
  d.used += bytes;
  d.peak = std::max(d.peak, d.used);
  Block block;
  block.data = base_ + *offset;
  block.bytes = bytes;
  block.device = device;
  block.home = home;
  block.made = std::move(made);
  LOCKSTEP_CHECK(::mprotect(block.data, bytes, PROT_READ | PROT_WRITE) == 0, "pages can be opened");
  std::memset(block.data, 0xff, bytes);
  LOCKSTEP_CHECK(::mprotect(block.data, bytes, PROT_NONE) == 0, "pages can be closed");
  return add_block(std::move(block));
}

Block* DeviceMemory::adopt(int device, int file, size_t offset, size_t bytes, int home,
                           PlacePtr made) {
  const MutexLock lock(mutex_);
  AddressRanges& addresses = devices_[static_cast<size_t>(device)].addresses;
  const std::optional<size_t> own = addresses.take(bytes);
  if (!own) return nullptr;
  Block block;
  block.data = base_ + *own;
  if (::mmap(block.data, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file,
             static_cast<off_t>(offset)) == MAP_FAILED) {
    addresses.give(*own, bytes);
    return nullptr;
  }
  block.bytes = bytes;
  block.device = device;
  block.home = home;
  block.made = std::move(made);
  block.foreign = true;
  return add_block(std::move(block));
}

void DeviceMemory::free(Block* block, const VectorClock& before) noexcept {
  MutexLock lock(mutex_);
  while (block->lent > 0) given_back_.wait(lock);
  for (Access& use : block->history.beyond(before))
    freed_.emplace(block->home, FreedInUse{std::move(use), block->made});
  const auto offset = static_cast<off_t>(offset_of(*block));
  const auto bytes = static_cast<off_t>(block->bytes);
  Device& d = devices_[static_cast<size_t>(block->device)];
  if (block->foreign) {
    ::mmap(block->data, block->bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file_.get(), offset);
  } else {
    ::mprotect(block->data, block->bytes, PROT_NONE);
    ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
    d.used -= block->bytes;
  }
  d.addresses.give(static_cast<size_t>(offset), block->bytes);
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
  if (block == nullptr) return false;
  open_locked(*block);
  ++block->lent;
  return true;
}

void DeviceMemory::close_at(const void* address) noexcept {
  const MutexLock lock(mutex_);
  Block* const block = find_locked(address);
  if (block == nullptr) return;
  close_locked(*block);
  if (--block->lent == 0) given_back_.notify_all();
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

}  // namespace lockstep::inline v0::testing::fake
