#include "lockstep/testing/fake_cuda/internal/timeline.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::testing::fake {
namespace {

constexpr auto kLateLimit = std::chrono::minutes(2);

}  // namespace

StreamSlot Timeline::slot(int device, int64_t id) const {
  const MutexLock lock(mutex_);
  const auto it = slots_.find({device, id});
  TORCH_CHECK(it != slots_.end(), "FakeCuda: cuda:", device, " has no stream ", id);
  return it->second;
}

void Timeline::add_stream(int device, int64_t id) {
  const MutexLock lock(mutex_);
  slots_[{device, id}] = static_cast<StreamSlot>(streams_.size());
  streams_.push_back({device, id, 0, {}});
}

std::string Timeline::name(StreamSlot stream) const {
  const MutexLock lock(mutex_);
  const Stream& s = streams_[static_cast<size_t>(stream)];
  std::string text = "cuda:" + std::to_string(s.device) + ", ";
  // Streams that libtorch did not make have an address for a number; their slot is as good a name.
  constexpr int64_t kLargest = 1 << 16;
  return text + (s.id < kLargest ? "stream " + std::to_string(s.id)
                                 : "another library's stream " + std::to_string(stream));
}

int Timeline::device(StreamSlot stream) const {
  const MutexLock lock(mutex_);
  return streams_[static_cast<size_t>(stream)].device;
}

bool Timeline::is_default(StreamSlot stream) const {
  const MutexLock lock(mutex_);
  return streams_[static_cast<size_t>(stream)].id == 0;
}

Moment Timeline::launch(StreamSlot stream, const Host& host) {
  const MutexLock lock(mutex_);
  Stream& s = streams_[static_cast<size_t>(stream)];
  s.clock.join(host.seen);
  s.clock.join(waited_);
  const Stamp stamp{stream, ++s.ticks};
  s.clock.advance(stamp);
  return {stamp, s.clock};
}

VectorClock Timeline::now(StreamSlot stream, const Host& host) const {
  const MutexLock lock(mutex_);
  VectorClock clock = streams_[static_cast<size_t>(stream)].clock;
  clock.join(host.seen);
  clock.join(waited_);
  return clock;
}

VectorClock Timeline::own(StreamSlot stream) const {
  const MutexLock lock(mutex_);
  return streams_[static_cast<size_t>(stream)].clock;
}

VectorClock Timeline::all_of(int device) const {
  const MutexLock lock(mutex_);
  VectorClock clock;
  for (const Stream& stream : streams_)
    if (stream.device == device) clock.join(stream.clock);
  return clock;
}

void Timeline::order(StreamSlot stream, const VectorClock& clock) {
  const MutexLock lock(mutex_);
  streams_[static_cast<size_t>(stream)].clock.join(clock);
}

void Timeline::queried(Host& host, const VectorClock& clock) {
  const MutexLock lock(mutex_);
  host.seen.join(clock);
}

void Timeline::waited(const VectorClock& clock) {
  const MutexLock lock(mutex_);
  waited_.join(clock);
}

void Timeline::begin_late(const Stamp& stamp, std::string text) {
  const MutexLock lock(mutex_);
  late_.push_back({stamp, std::move(text)});
}

void Timeline::end_late(const Stamp& stamp) {
  const MutexLock lock(mutex_);
  std::erase_if(late_, [&](const Late& late) {
    return late.stamp.stream == stamp.stream && late.stamp.tick == stamp.tick;
  });
  ended_.notify_all();
}

const Timeline::Late* Timeline::late_in(const VectorClock& clock, const Stamp* but) const {
  const auto it = std::find_if(late_.begin(), late_.end(), [&](const Late& late) {
    const bool self =
        but != nullptr && late.stamp.stream == but->stream && late.stamp.tick == but->tick;
    return !self && clock.covers(late.stamp);
  });
  return it == late_.end() ? nullptr : &*it;
}

bool Timeline::finished(const VectorClock& clock, const Stamp* but) const {
  const MutexLock lock(mutex_);
  return late_in(clock, but) == nullptr;
}

void Timeline::wait_for(const VectorClock& clock, const Stamp* but) {
  const Deadline deadline = Deadline::after(kLateLimit);
  MutexLock lock(mutex_);
  while (const Late* late = late_in(clock, but)) {
    if (deadline.expired())
      throw Timeout("FakeCuda: " + late->text + " has not ended after " +
                    std::to_string(deadline.timeout_seconds()) +
                    " s, and what follows it on its stream waits; did all ranks call it?");
    ended_.wait_until(lock, deadline.time());
  }
}

}  // namespace lockstep::inline v0::testing::fake
