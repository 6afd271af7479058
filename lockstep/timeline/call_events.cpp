#include "lockstep/timeline/call_events.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "lockstep/trace/field_text.h"

namespace lockstep::inline v0::timeline {
namespace {

// 0 for a name that is not known.
int64_t bytes_of(std::string_view dtype) {
  struct Size {
    std::string_view name;
    int64_t bytes;
  };
  static constexpr Size kSizes[] = {
      {"float64", 8}, {"float32", 4}, {"float16", 2}, {"bfloat16", 2},  {"int64", 8},
      {"int32", 4},   {"int16", 2},   {"int8", 1},    {"uint8", 1},     {"uint16", 2},
      {"uint32", 4},  {"uint64", 8},  {"bool", 1},    {"complex64", 8}, {"complex128", 16}};
  for (const Size& size : kSizes)
    if (size.name == dtype) return size.bytes;
  return 0;
}

struct CallKind {
  TrackKind track;
  const char* category;
};
CallKind kind_of(const trace::CallRecord& call) {
  if (trace::is_remote(call)) return {TrackKind::kRemote, kRemoteCall};
  if (call.moving != 0) return {TrackKind::kMessages, kMessage};
  return {TrackKind::kCollectives, kCollective};
}

Event event_of(const trace::CallRecord& call) {
  const CallKind kind = kind_of(call);
  const std::string dtype = trace::field_text(call.dtype);
  Event event{.name = trace::title(call), .category = kind.category, .track = kind.track};
  if (trace::is_remote(call)) return event;
  event.numbers = {{"call", static_cast<int64_t>(call.sequence)}, {"group", call.group}};
  if (const int64_t bytes = bytes_of(dtype); bytes > 0)
    event.numbers.emplace_back("bytes", bytes * call.elements);
  if (call.root >= 0) event.numbers.emplace_back("root", call.root);
  if (call.moving != 0) {
    event.numbers.emplace_back("peer", call.peer);
    event.numbers.emplace_back("tag", call.tag);
  }
  event.texts.emplace_back("what", trace::describe(call));
  return event;
}

}  // namespace

std::vector<Event> events_of(const std::vector<trace::KeptCall>& calls, const Window& window,
                             const TickClock& clock) {
  std::vector<Event> events;
  for (const auto& [number, call, waited, abandoned] : calls) {
    const uint64_t over = call.ended != 0 ? call.ended : abandoned;
    const bool pending = over == 0 || over > window.ended;
    const uint64_t end = pending ? window.ended : over;
    if (call.begun >= window.ended || end <= window.begun) continue;
    Event event = event_of(call);
    event.begin_ns = clock.ns(std::max(call.begun, window.begun));
    event.end_ns = clock.ns(end);
    if (call.begun < window.begun) event.numbers.emplace_back("begun_before", 1);
    if (pending)
      event.numbers.emplace_back("pending", 1);
    else if (call.ended == 0)
      event.numbers.emplace_back("abandoned", 1);
    if (waited != 0 && waited < end) {
      Event wait = event;
      wait.category = kWait;
      wait.track = TrackKind::kWaits;
      wait.begin_ns = clock.ns(std::max(waited, window.begun));
      events.push_back(std::move(wait));
    }
    events.push_back(std::move(event));
  }
  return events;
}

std::vector<Event> events_of(const std::vector<Span>& spans, const TickClock& clock) {
  std::vector<Event> events;
  events.reserve(spans.size());
  for (const Span& span : spans) {
    Event& event = events.emplace_back();
    event.name = span.text();
    event.category = span.kind == SpanKind::kOperator ? kOperator : kMarked;
    event.track = span.thread == 0 ? TrackKind::kLoop : TrackKind::kThread;
    event.thread = static_cast<int>(span.thread);
    event.begin_ns = clock.ns(span.begun);
    event.end_ns = clock.ns(span.ended);
    if (span.number >= 0) event.numbers.emplace_back("number", span.number);
  }
  return events;
}

}  // namespace lockstep::inline v0::timeline
