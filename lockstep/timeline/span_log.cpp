#include "lockstep/timeline/span_log.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "lockstep/core/utf8.h"

namespace lockstep::inline v0::timeline {
namespace {

// `threads`: of each span.
std::unordered_map<std::thread::id, uint32_t> numbers_of(
    std::thread::id first, const std::vector<Span>& spans,
    const std::vector<std::thread::id>& threads) {
  std::unordered_map<std::thread::id, uint64_t> begun;  // when a thread's first span ended
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto [thread, is_new] = begun.emplace(threads[i], spans[i].ended);
    if (!is_new) thread->second = std::min(thread->second, spans[i].ended);
  }
  std::vector<std::pair<uint64_t, std::thread::id>> order;
  for (const auto& [thread, when] : begun)
    if (thread != first) order.emplace_back(when, thread);
  std::sort(order.begin(), order.end());
  std::unordered_map<std::thread::id, uint32_t> numbers{{first, 0}};
  for (const auto& [when, thread] : order)
    numbers.emplace(thread, static_cast<uint32_t>(numbers.size()));
  return numbers;
}

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
    kept_[kind].threads.clear();
    kept_[kind].threads.reserve(capacity_[kind]);
    kept_[kind].lost = 0;
  }
  first_thread_ = std::this_thread::get_id();
  started_ = ticks();
  on_.store(true, std::memory_order_relaxed);
}

void SpanLog::stop() noexcept {
  on_.store(false, std::memory_order_relaxed);
}

void SpanLog::add(std::string_view name, uint64_t begun, uint64_t ended, int64_t number,
                  SpanKind kind) noexcept {
  if (!on()) return;
  const MutexLock lock(mutex_);
  if (begun < started_) return;
  Kept& kept = kept_[static_cast<size_t>(kind)];
  if (kept.spans.size() == capacity_[static_cast<size_t>(kind)]) {
    ++kept.lost;
    return;
  }
  kept.threads.push_back(std::this_thread::get_id());
  Span& span = kept.spans.emplace_back();
  span.begun = begun;
  span.ended = ended;
  span.number = number;
  span.kind = kind;
  put_name(name, span.name);
}

std::vector<Span> SpanLog::spans() const {
  const MutexLock lock(mutex_);
  std::vector<Span> all;
  std::vector<std::thread::id> threads;
  for (const Kept& kept : kept_) {
    all.insert(all.end(), kept.spans.begin(), kept.spans.end());
    threads.insert(threads.end(), kept.threads.begin(), kept.threads.end());
  }
  const std::unordered_map<std::thread::id, uint32_t> numbers =
      numbers_of(first_thread_, all, threads);
  for (size_t i = 0; i < all.size(); ++i) all[i].thread = numbers.at(threads[i]);
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
