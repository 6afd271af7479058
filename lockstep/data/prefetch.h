// PrefetchRing: the threads behind Loader. Worker threads do the pieces of work numbered
// first..count-1, a bounded number ahead, and hand them over strictly in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0::data {

// The ring manages slot numbers, and its owner the slots' contents: a worker fills a slot, the
// consumer reads it, and no two threads touch a slot at once. next() and the destructor belong to
// one thread, the consumer.
class LOCKSTEP_API PrefetchRing {
 public:
  // Does piece `number` and stores the result in slot `slot`. Called by several threads at once,
  // each with another slot.
  using Produce = std::function<void(int64_t number, size_t slot)>;

  // The work of a ring, and how it is done.
  struct Shape {
    int64_t first = 0;  // the first piece
    int64_t count = 0;  // one past the last piece
    int workers = 0;    // threads; 0: next() does the work itself
    // Maximum number of finished or started pieces that the consumer has not requested yet; at
    // least 1.
    int64_t ahead = 1;
  };
  // The number of slots (0..slots-1) of a ring of this shape: one more than are ahead, for the
  // consumer's current piece.
  static size_t slots(const Shape& shape);

  // Starts the threads. Throws std::system_error if that fails; no thread is then left running.
  PrefetchRing(const Shape& shape, Produce produce);
  PrefetchRing(const PrefetchRing&) = delete;
  PrefetchRing& operator=(const PrefetchRing&) = delete;
  // Waits for started pieces only.
  ~PrefetchRing();

  // The slot of the next piece, which belongs to the consumer until the next call; nullopt after
  // the last. Blocks until it is done. Rethrows the exception of produce() for this piece, after
  // all pieces before it were handed over; and again if called again.
  std::optional<size_t> next();

 private:
  struct Slot {
    bool ready = false;
    std::exception_ptr error;
  };

  void work();
  void stop_and_join() noexcept;

  const Produce produce_;
  const int64_t count_;

  bool has_space() const LOCKSTEP_REQUIRES(mutex_);

  Mutex mutex_;
  ConditionVariable space_, ready_;
  std::vector<Slot> slots_ LOCKSTEP_GUARDED_BY(mutex_);  // piece n uses slot n % slots_.size()
  int64_t begun_ LOCKSTEP_GUARDED_BY(mutex_);            // the next piece for a worker to take
  int64_t wanted_ LOCKSTEP_GUARDED_BY(mutex_);           // the next piece for the consumer
  bool held_ LOCKSTEP_GUARDED_BY(mutex_) = false;        // the consumer has piece wanted_ - 1
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace lockstep::inline v0::data
