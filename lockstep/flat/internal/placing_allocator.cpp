#include "lockstep/flat/internal/placing_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/core/mutex.h"

namespace lockstep::inline v0::flat::internal {
// The watches of a thread: entries of which unwatch() was called on another thread stay until this
// thread looks.
class ThreadWatchers {
 public:
  void add(const std::shared_ptr<AllocationWatch>& watch) {
    entries_.push_back({watch, ++watch->turn_});
  }
  static void end(AllocationWatch& watch) noexcept {
    if (watch.turn_ % 2 == 1) ++watch.turn_;
  }
  // Returns whether any are left.
  bool clear_ended() noexcept {
    std::erase_if(entries_, [](const Entry& entry) { return entry.watch->turn_ != entry.turn; });
    return !entries_.empty();
  }
  bool has(const AllocationWatch& watch) const noexcept {
    return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.watch.get() == &watch && watch.turn_ == entry.turn;
    });
  }
  template <typename F>
  void each(F&& f) const {
    for (const Entry& entry : entries_) f(*entry.watch);
  }

 private:
  struct Entry {
    std::shared_ptr<AllocationWatch> watch;
    uint64_t turn;
  };
  std::vector<Entry> entries_;
};

namespace {

// A plain pointer, null on threads without watches: destructors of other thread-local objects make
// and free tensors too.
constinit thread_local ThreadWatchers* watchers = nullptr;

void forget_ended() noexcept {
  if (watchers == nullptr || watchers->clear_ended()) return;
  delete watchers;
  watchers = nullptr;
}

// Finds a lent address when it is freed: libtorch's deleters are plain functions of the address
// (c10/core/Allocator.h, raw_deleter).
class Lent {
 public:
  void add(void* memory, std::shared_ptr<Place> place) {
    const MutexLock lock(mutex_);
    places_[memory] = std::move(place);
  }
  std::shared_ptr<Place> remove(void* memory) {
    const MutexLock lock(mutex_);
    const auto found = places_.find(memory);
    if (found == places_.end()) return nullptr;
    std::shared_ptr<Place> place = std::move(found->second);
    places_.erase(found);
    return place;
  }

 private:
  Mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<Place>> places_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Never destroyed, because tensors are freed even at the very end of a process.
Lent& lent() {
  static Lent& lent = *new Lent;
  return lent;
}

class PlacingAllocator final : public c10::Allocator {
 public:
  explicit PlacingAllocator(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (watchers == nullptr) return base_->allocate(bytes);
    return shown(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    base_->copy_data(to, from, bytes);
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return base_->is_simple_data_ptr(data);
  }

  c10::Allocator* base() const { return base_; }

 private:
  c10::DataPtr shown(size_t bytes) {
    forget_ended();
    if (watchers == nullptr) return base_->allocate(bytes);
    c10::DataPtr data;
    // Asks all of them, so that each counts every allocation.
    watchers->each([&](AllocationWatch& watch) {
      if (!watch.wants(bytes)) return;
      const std::shared_ptr<Place> place = watch.place(bytes);
      if (place && !data) data = lend(place);
    });
    if (!data) data = base_->allocate(bytes);
    watchers->each([&](AllocationWatch& watch) {
      if (watch.wants(bytes)) watch.allocated(bytes, data.get());
    });
    return data;
  }

  static c10::DataPtr lend(const std::shared_ptr<Place>& place) {
    void* memory = place->tensor.mutable_data_ptr();
    place->lent.store(true);
    lent().add(memory, place);
    return {memory, memory, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  static void give_back(void* memory);

  c10::Allocator* base_;
};

PlacingAllocator*& installed() {
  static PlacingAllocator* allocator = nullptr;
  return allocator;
}

void PlacingAllocator::give_back(void* memory) {
  if (const std::shared_ptr<Place> place = lent().remove(memory)) {
    place->lent.store(false);
    return;
  }
  installed()->base()->raw_deleter()(memory);
}

}  // namespace

void install_placing_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    installed() = new PlacingAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(installed());
  });
}

c10::DataPtr allocate_unseen(size_t bytes) {
  return installed()->base()->allocate(bytes);
}

void watch(const std::shared_ptr<AllocationWatch>& watch) {
  forget_ended();
  if (watches_this_thread(*watch)) return;
  unwatch(*watch);
  if (watchers == nullptr) watchers = new ThreadWatchers;
  watchers->add(watch);
}

void unwatch(AllocationWatch& watch) noexcept {
  ThreadWatchers::end(watch);
  forget_ended();
}

bool watches_this_thread(const AllocationWatch& watch) noexcept {
  return watchers != nullptr && watchers->has(watch);
}

}  // namespace lockstep::inline v0::flat::internal
