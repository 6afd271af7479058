#include "lockstep/timeline/span_log.h"

#include <algorithm>
#include <cstring>

namespace lockstep::inline v0::timeline {
namespace {

// More threads share the number of the last.
constexpr size_t kThreads = 256;

// In the middle of a character of UTF-8.
bool within_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U;
}

}  // namespace

std::string_view Span::text() const {
  return {name.data(), ::strnlen(name.data(), name.size())};
}

void put_name(std::string_view name, std::array<char, Span::kNameBytes>& to) noexcept {
  size_t size = std::min(name.size(), to.size() - 1);
  if (size < name.size())
    while (size > 0 && within_character(name[size])) --size;
  std::copy_n(name.data(), size, to.data());
  to[size] = '\0';
}

SpanLog::SpanLog(size_t capacity) : capacity_(capacity) {}

void SpanLog::start() {
  const MutexLock lock(mutex_);
  spans_.clear();
  spans_.reserve(capacity_);
  threads_.clear();
  threads_.reserve(kThreads);
  threads_.push_back(std::this_thread::get_id());
  lost_ = 0;
  started_ = ticks();
  on_.store(true, std::memory_order_relaxed);
}

void SpanLog::stop() noexcept {
  on_.store(false, std::memory_order_relaxed);
}

void SpanLog::add(std::string_view name, uint64_t begun, uint64_t ended, int64_t number,
                  SpanKind kind) noexcept {
  if (!on()) return;
  const std::thread::id self = std::this_thread::get_id();
  const MutexLock lock(mutex_);
  if (begun < started_) return;
  if (spans_.size() == capacity_) {
    ++lost_;
    return;
  }
  auto thread = std::find(threads_.begin(), threads_.end(), self);
  if (thread == threads_.end()) {
    if (threads_.size() < kThreads) threads_.push_back(self);
    thread = threads_.end() - 1;
  }
  Span& span = spans_.emplace_back();
  span.begun = begun;
  span.ended = ended;
  span.number = number;
  span.thread = static_cast<uint32_t>(thread - threads_.begin());
  span.kind = kind;
  put_name(name, span.name);
}

std::vector<Span> SpanLog::spans() const {
  const MutexLock lock(mutex_);
  return spans_;
}

uint64_t SpanLog::lost() const {
  const MutexLock lock(mutex_);
  return lost_;
}

void ScopedSpan::begin(SpanLog& log, std::string_view name, int64_t number) noexcept {
  log_ = &log;
  number_ = number;
  put_name(name, name_);
  begun_ = ticks();
}

void ScopedSpan::end() noexcept {
  log_->add({name_.data(), ::strnlen(name_.data(), name_.size())}, begun_, ticks(), number_);
}

}  // namespace lockstep::inline v0::timeline
