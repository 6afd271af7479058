// SpanLog: spans of one process in memory: what ran when, on which thread.
//
// Adding one costs a lock that is rarely contended and a copy of a hundred bytes; nothing is
// allocated then. Where the log is off it costs one relaxed load and a branch. Times are ticks
// (core/ticks.h), as in the flight recorder.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/ticks.h"

namespace lockstep::inline v0::timeline {

// The origin of a span.
enum class SpanKind : uint32_t {
  kMarked,    // a part of the program, marked by it
  kOperator,  // of libtorch
};

// A piece of work that ran from one moment to another.
struct LOCKSTEP_API Span {
  static constexpr size_t kNameBytes = 48;

  uint64_t begun = 0;  // ticks()
  uint64_t ended = 0;
  int64_t number = -1;  // of the step, or what else the program counts; -1: none
  uint32_t thread =
      0;  // 0: the one that started the log; the others by when their first spans ended
  SpanKind kind = SpanKind::kMarked;
  std::array<char, kNameBytes> name = {};  // NUL-terminated; longer ones are cut

  std::string_view text() const;  // the name
};

// Copies the name, cut where it is too long.
LOCKSTEP_API void put_name(std::string_view name, std::array<char, Span::kNameBytes>& to) noexcept;

// Thread-safety: any thread; start() and stop() one thread at a time.
class LOCKSTEP_API SpanLog {
 public:
  // `capacity`: spans from one start() to the next; further ones are counted and dropped. Operators
  // have room of their own, since they would fill it before what they lie in has ended.
  explicit SpanLog(size_t capacity, size_t operators = 0);
  SpanLog(const SpanLog&) = delete;
  SpanLog& operator=(const SpanLog&) = delete;

  // Whether spans are taken.
  bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  // Forgets what there was, and takes the memory for all spans, which it keeps.
  void start();
  // Takes no more; what there is stays.
  void stop() noexcept;
  // Does nothing while the log is off, and for a span that had begun before start().
  void add(std::string_view name, uint64_t begun, uint64_t ended, int64_t number = -1,
           SpanKind kind = SpanKind::kMarked) noexcept;

  std::vector<Span> spans() const;     // since start(), each kind in the order of their ends
  uint64_t lost(SpanKind kind) const;  // spans of a kind that found no room since start()

 private:
  static constexpr size_t kKinds = 2;
  struct Kept {
    std::vector<Span> spans;  // without the numbers of their threads
    std::vector<std::thread::id> threads;
    uint64_t lost = 0;
  };

  const std::array<size_t, kKinds> capacity_;
  std::atomic<bool> on_{false};
  mutable Mutex mutex_;
  std::array<Kept, kKinds> kept_ LOCKSTEP_GUARDED_BY(mutex_);  // by SpanKind
  std::thread::id first_thread_ LOCKSTEP_GUARDED_BY(mutex_);   // which started the log
  uint64_t started_ LOCKSTEP_GUARDED_BY(mutex_) = 0;           // ticks()
};

// Marks a span from here to the end of its scope.
// Thread-safety: its thread. Its destructor only writes into memory.
class [[nodiscard]] LOCKSTEP_API ScopedSpan {
 public:
  // `log`: outlives the span; null: nothing is marked.
  ScopedSpan(SpanLog* log, std::string_view name, int64_t number = -1) noexcept {
    if (log != nullptr && log->on()) begin(*log, name, number);
  }
  ~ScopedSpan() {
    if (log_ != nullptr) end();
  }
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

 private:
  void begin(SpanLog& log, std::string_view name, int64_t number) noexcept;
  void end() noexcept;

  SpanLog* log_ = nullptr;
  uint64_t begun_;
  int64_t number_;
  std::array<char, Span::kNameBytes> name_;
};

}  // namespace lockstep::inline v0::timeline
