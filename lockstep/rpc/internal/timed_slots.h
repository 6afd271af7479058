// TimedSlots: things that each have a number and a time: calls and when they have to end, tasks and when they are to run.
// Not a public header.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::rpc::internal {

// T is a pointer. A number is a place and, above it, how often the place has been used, so that a number that is over
// names nothing else. The times are in a heap; what is taken out leaves its time behind until that comes or most times
// are such. In steady state nothing is allocated. Not thread-safe.
template <typename T>
class TimedSlots {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // -> the number, never 0.
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
  // Takes it out; null: it is not here (any more).
  T take(uint64_t number) {
    T item = empty(number);
    if (item && heap_.size() > 64 && size_ < heap_.size() / 2) {
      std::erase_if(heap_, [this](const Entry& entry) { return !slot_of(entry.number); });
      std::make_heap(heap_.begin(), heap_.end());
    }
    return item;
  }
  // Whether no time that is still in the heap is earlier: those that were taken out count until they leave it.
  bool is_before_all(Time when) const { return heap_.empty() || when < heap_.front().when; }
  // The time of the earliest.
  std::optional<Time> next() {
    while (!heap_.empty() && !slot_of(heap_.front().number)) pop();
    if (heap_.empty()) return std::nullopt;
    return heap_.front().when;
  }
  // The earliest that is due by `now`; null: none.
  T take_due(Time now) {
    const auto when = next();
    if (!when || *when > now) return nullptr;
    T item = empty(heap_.front().number);
    pop();
    return item;
  }
  // All that are wanted.
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
    // A heap's top is the greatest.
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

}  // namespace lockstep::rpc::internal
