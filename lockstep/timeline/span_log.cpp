#include "lockstep/timeline/span_log.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/utf8.h"

namespace lockstep::inline v0::timeline {
namespace {

// More threads share the number of the last.
constexpr size_t kThreads = 256;

}  // namespace

std::string_view Span::text() const {
  return {name.data(), ::strnlen(name.data(), name.size())};
}

void put_name(std::string_view name, std::array<char, Span::kNameBytes>& to) noexcept {
  const size_t size = whole_characters(name, to.size() - 1);
  std::copy_n(name.data(), size, to.data());
  to[size] = '\0';
}

SpanLog::SpanLog(size_t capacity, size_t operators) : capacity_{capacity, operators} {}

void SpanLog::start() {
  const MutexLock lock(mutex_);
  for (size_t kind = 0; kind < kKinds; ++kind) {
    kept_[kind].spans.clear();
    kept_[kind].spans.reserve(capacity_[kind]);
    kept_[kind].lost = 0;
  }
  threads_.clear();
  threads_.reserve(kThreads);
  threads_.push_back(std::this_thread::get_id());
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
  Kept& kept = kept_[static_cast<size_t>(kind)];
  if (kept.spans.size() == capacity_[static_cast<size_t>(kind)]) {
    ++kept.lost;
    return;
  }
  auto thread = std::find(threads_.begin(), threads_.end(), self);
  if (thread == threads_.end()) {
    if (threads_.size() < kThreads) threads_.push_back(self);
    thread = threads_.end() - 1;
  }
  Span& span = kept.spans.emplace_back();
  span.begun = begun;
  span.ended = ended;
  span.number = number;
  span.thread = static_cast<uint32_t>(thread - threads_.begin());
  span.kind = kind;
  put_name(name, span.name);
}

std::vector<Span> SpanLog::spans() const {
  const MutexLock lock(mutex_);
  std::vector<Span> all;
  for (const Kept& kept : kept_) all.insert(all.end(), kept.spans.begin(), kept.spans.end());
  return all;
}

uint64_t SpanLog::lost(SpanKind kind) const {
  const MutexLock lock(mutex_);
  return kept_[static_cast<size_t>(kind)].lost;
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
