#include "lockstep/data/prefetch.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep::inline v0::data {

size_t PrefetchRing::slots(const Shape& shape) {
  return shape.workers == 0 ? 1 : static_cast<size_t>(shape.ahead) + 1;
}

PrefetchRing::PrefetchRing(const Shape& shape, Produce produce)
    : produce_(std::move(produce)),
      count_(shape.count),
      slots_(slots(shape)),
      begun_(shape.first),
      wanted_(shape.first) {
  LOCKSTEP_CHECK(shape.first >= 0 && shape.workers >= 0 && shape.ahead >= 1,
                 "a prefetch ring of a possible shape");
  const int64_t threads =
      std::min<int64_t>({shape.workers, shape.ahead, std::max<int64_t>(0, count_ - shape.first)});
  try {
    for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {
    stop_and_join();
    throw;
  }
}

PrefetchRing::~PrefetchRing() {
  stop_and_join();
}

void PrefetchRing::stop_and_join() noexcept {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  space_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

// Piece n may begin after the consumer has released piece n - slots.
bool PrefetchRing::has_space() const {
  return begun_ < wanted_ - (held_ ? 1 : 0) + static_cast<int64_t>(slots_.size());
}

void PrefetchRing::work() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stop_ && begun_ < count_ && !has_space()) space_.wait(lock);
    if (stop_ || begun_ >= count_) return;
    const int64_t number = begun_++;
    const size_t slot = static_cast<size_t>(number) % slots_.size();
    lock.unlock();
    std::exception_ptr error;
    try {
      produce_(number, slot);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slots_[slot].error = error;
    slots_[slot].ready = true;
    // The consumer will not get past this piece, so no later piece is started.
    if (error) stop_ = true;
    ready_.notify_one();
    if (stop_) space_.notify_all();
  }
}

std::optional<size_t> PrefetchRing::next() {
  MutexLock lock(mutex_);
  if (threads_.empty()) {
    if (wanted_ >= count_) return std::nullopt;
    produce_(wanted_, 0);
    ++wanted_;
    return 0;
  }
  if (held_) {
    slots_[static_cast<size_t>(wanted_ - 1) % slots_.size()].ready = false;
    held_ = false;
    space_.notify_one();
  }
  if (wanted_ >= count_) return std::nullopt;
  const size_t number = static_cast<size_t>(wanted_) % slots_.size();
  Slot& slot = slots_[number];
  while (!slot.ready) ready_.wait(lock);
  if (slot.error) std::rethrow_exception(slot.error);
  ++wanted_;
  held_ = true;
  return number;
}

}  // namespace lockstep::inline v0::data
