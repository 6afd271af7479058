#include "lockstep/testing/fake_cuda/internal/runtime_events.h"

#include <sys/mman.h>

#include <chrono>
#include <thread>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/testing/fake_cuda/internal/ipc_handle.h"
#include "lockstep/testing/fake_cuda/internal/launch.h"

namespace lockstep::inline v0::testing::fake {
namespace {

constexpr size_t kEventsAtOnce = 4096;
constexpr auto kEventLimit = std::chrono::minutes(2);
constexpr auto kEventLook = std::chrono::microseconds(200);

// Until the recording is over; false if it is not within the limit.
bool await(const RuntimeEvent::Shared& shared, uint64_t recording) {
  for (const Deadline deadline = Deadline::after(kEventLimit); !deadline.expired();) {
    if (shared.over.load() >= recording) return true;
    std::this_thread::sleep_for(kEventLook);
  }
  return false;
}

void raise(std::atomic<uint64_t>& value, uint64_t to) {
  for (uint64_t now = value.load(); now < to && !value.compare_exchange_weak(now, to);) {
  }
}

// Of all events of this process that others may have; never given back.
struct EventPages {
  Mutex mutex;
  UniqueFd file LOCKSTEP_GUARDED_BY(mutex);
  RuntimeEvent::Shared* events LOCKSTEP_GUARDED_BY(mutex) = nullptr;
  size_t used LOCKSTEP_GUARDED_BY(mutex) = 0;
};

RuntimeEvent::Shared* map_events(int file) {
  void* data = ::mmap(nullptr, kEventsAtOnce * sizeof(RuntimeEvent::Shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED, file, 0);
  return data == MAP_FAILED ? nullptr : static_cast<RuntimeEvent::Shared*>(data);
}

}  // namespace

RuntimeEvent::Recorded RuntimeEvent::recorded() const {
  const MutexLock lock(mutex_);
  return recorded_;
}

void RuntimeEvent::record(StreamSlot stream) {
  Timeline& timeline = machine().timeline;
  const VectorClock clock = timeline.now(stream, *Host::current());
  {
    const MutexLock lock(mutex_);
    recorded_ = {clock, stream};
  }
  if (shared_ == nullptr) return;
  const uint64_t recording = ++shared_->recorded;
  if (timeline.finished(clock)) return raise(shared_->over, recording);
  std::thread([&timeline, clock, shared = shared_, recording] {
    try {
      timeline.wait_for(clock);
      raise(shared->over, recording);
    } catch (const Timeout&) {  // who waits for it says so
    }
  }).detach();
}

void RuntimeEvent::hold(StreamSlot stream) {
  Timeline& timeline = machine().timeline;
  timeline.order(stream, recorded().clock);
  if (over()) return;
  // Another process's device is not through yet: what comes next on the stream waits for it.
  Launch launch("cudaStreamWaitEvent", stream);
  launch.start(/*late=*/true);
  std::thread([&timeline, stamp = launch.moment().stamp, shared = shared_,
               recording = shared_->recorded.load()] {
    if (await(*shared, recording)) timeline.end_late(stamp);
  }).detach();
}

bool RuntimeEvent::over() const {
  return shared_ == nullptr || shared_->over.load() >= shared_->recorded.load();
}

bool RuntimeEvent::query() {
  Timeline& timeline = machine().timeline;
  const Recorded now = recorded();
  if (!timeline.finished(now.clock) || !over()) return false;
  timeline.queried(*Host::current(), now.clock);
  return true;
}

void RuntimeEvent::synchronize() {
  if (shared_ != nullptr) await(*shared_, shared_->recorded.load());
  const Recorded now = recorded();
  stop_host(HostStop::kEvent, "cudaEventSynchronize", now.stream, now.clock);
}

RuntimeEvent* make_shared_event() {
  static auto* const pages = new EventPages;
  const MutexLock lock(pages->mutex);
  constexpr size_t kBytes = kEventsAtOnce * sizeof(RuntimeEvent::Shared);
  if (pages->events == nullptr) {
    pages->file = UniqueFd(::memfd_create("events of FakeCuda's devices", MFD_CLOEXEC));
    if (pages->file.get() < 0 || ::ftruncate(pages->file.get(), kBytes) != 0) return nullptr;
    pages->events = map_events(pages->file.get());
  }
  if (pages->events == nullptr || pages->used == kEventsAtOnce) return nullptr;
  const size_t index = pages->used++;
  const SharedPlace place{::getpid(), pages->file.get(), index, 0};
  return new RuntimeEvent(pages->events + index, to_handle(place));
}

RuntimeEvent* open_shared_event(const IpcHandle& handle) {
  const SharedPlace place = from_handle(handle);
  const UniqueFd file = open_file(place);
  RuntimeEvent::Shared* events = file.get() < 0 ? nullptr : map_events(file.get());
  return events == nullptr ? nullptr : new RuntimeEvent(events + place.offset, handle);
}

}  // namespace lockstep::inline v0::testing::fake
