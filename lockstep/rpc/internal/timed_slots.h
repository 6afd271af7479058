// TimedSlots: items that each have a number and a time: calls with their deadlines, tasks with the
// time at which they run. Not a public header.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::inline v0::rpc::internal {

// T is a pointer. A number consists of a slot and, above it, how often the slot has been used, so
// that an old number never names a new item. The times are in a heap; the time of a removed item
// stays until it is due or until most times belong to removed items. In steady state nothing is
// allocated.
// Thread-safety: one thread at a time.
template <typename T>
class TimedSlots {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Returns the number, never 0.
  uint64_t add(Time when, T item) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const uint32_t place = free_.back();
    free_.pop_back();
    slots_[place].item = std::move(item);
    const uint64_t number = uint64_t{slots_[place].age} << 32 | place;
    heap_.push_back({when, number});
    std::push_heap(heap_.begin(), heap_.end());
    ++size_;
    return number;
  }
  // Null: it is not here (any more). Valid until the next change.
  const T* find(uint64_t number) const {
    const Slot* const slot = slot_of(number);
    return slot == nullptr ? nullptr : &slot->item;
  }
  // Removes the item; null: it is not here (any more).
  T take(uint64_t number) {
    T item = empty(number);
    if (item && heap_.size() > 64 && size_ < heap_.size() / 2) {
      std::erase_if(heap_, [this](const Entry& entry) { return !slot_of(entry.number); });
      std::make_heap(heap_.begin(), heap_.end());
    }
    return item;
  }
  // Whether no time in the heap is earlier; times of removed items count until they leave it.
  bool is_before_all(Time when) const { return heap_.empty() || when < heap_.front().when; }
  // The time of the earliest.
  std::optional<Time> next() {
    while (!heap_.empty() && !slot_of(heap_.front().number)) pop();
    if (heap_.empty()) return std::nullopt;
    return heap_.front().when;
  }
  // Removes the earliest item that is due by `now`; null: none.
  T take_due(Time now) {
    const auto when = next();
    if (!when || *when > now) return nullptr;
    T item = empty(heap_.front().number);
    pop();
    return item;
  }
  // Removes all items that `wanted` selects.
  template <typename Wanted>
  std::vector<T> take_if(Wanted wanted) {
    std::vector<T> taken;
    for (uint32_t place = 0; place < slots_.size(); ++place) {
      Slot& slot = slots_[place];
      if (slot.item && wanted(slot.item)) taken.push_back(empty(uint64_t{slot.age} << 32 | place));
    }
    return taken;
  }
  std::vector<T> take_all() {
    return take_if([](const T&) { return true; });
  }
  template <typename F>
  void for_each(F f) const {
    for (const Slot& slot : slots_)
      if (slot.item) f(slot.item);
  }
  size_t size() const { return size_; }

 private:
  struct Entry {
    Time when;
    uint64_t number;
    // std heaps have the greatest element on top.
    bool operator<(const Entry& other) const { return when > other.when; }
  };
  struct Slot {
    uint32_t age = 1;
    T item = nullptr;
  };
  const Slot* slot_of(uint64_t number) const {
    const auto place = static_cast<uint32_t>(number);
    if (place >= slots_.size()) return nullptr;
    const Slot& slot = slots_[place];
    return slot.age == number >> 32 && slot.item ? &slot : nullptr;
  }
  T empty(uint64_t number) {
    if (!slot_of(number)) return nullptr;
    const auto place = static_cast<uint32_t>(number);
    Slot& slot = slots_[place];
    T item = std::exchange(slot.item, nullptr);
    if (++slot.age == 0) slot.age = 1;
    free_.push_back(place);
    --size_;
    return item;
  }
  void pop() {
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
  }

  std::vector<Entry> heap_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  size_t size_ = 0;
};

}  // namespace lockstep::inline v0::rpc::internal
