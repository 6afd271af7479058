// The device guard: current devices and streams, events, waits.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "lockstep/testing/fake_cuda/internal/capture.h"
#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"
#include "lockstep/testing/fake_cuda/internal/pinned.h"

namespace lockstep::inline v0::testing::fake {
namespace {

constexpr int kPool = 32;  // streams of a device's pool, handed out in turns as CUDA's are

thread_local int device_now = 0;
thread_local std::vector<int64_t> streams_now;  // by device

int64_t& stream_now(int device) {
  if (streams_now.size() <= static_cast<size_t>(device))
    streams_now.resize(static_cast<size_t>(device) + 1);
  return streams_now[static_cast<size_t>(device)];
}

c10::Device cuda(int device) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)};
}

int index_of(c10::Device device) {
  TORCH_CHECK(device.type() == c10::DeviceType::CUDA, "FakeCuda: ", device, " is no CUDA device");
  const int index = device.has_index() ? device.index() : device_now;
  TORCH_CHECK(index >= 0 && index < machine().options.devices,
              "CUDA error: invalid device ordinal: ", device, ", of ", machine().options.devices,
              " that FakeCuda has");
  return index;
}

struct RecordedEvent {
  VectorClock clock;
  StreamSlot stream = 0;
  std::chrono::steady_clock::time_point time;
  bool captured = false;
  std::weak_ptr<Capture> capture;  // that its stream belonged to
};

void check_captured(const RecordedEvent& event, const char* call) {
  if (!event.captured) return;
  if (const CapturePtr capture = event.capture.lock())
    capture->forbid(std::string(call) + " of an event that was recorded in a capture",
                    "operation not permitted on an event last recorded in a capturing stream "
                    "(cudaErrorCapturedEvent)");
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const int before = device_now;
    device_now = index_of(device);
    return cuda(before);
  }
  c10::Device getDevice() const override { return cuda(device_now); }
  void setDevice(c10::Device device) const override { device_now = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) device_now = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(machine().options.devices);
  }

  c10::Stream getStream(c10::Device device) const override {
    const int index = index_of(device);
    return c10::Stream(c10::Stream::UNSAFE, cuda(index), stream_now(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, cuda(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<int> next{0};
    return c10::Stream(c10::Stream::UNSAFE, cuda(index_of(device)), 1 + next++ % kPool);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    slot_of(stream);  // there is such a stream
    int64_t& now = stream_now(stream.device_index());
    const c10::Stream before(c10::Stream::UNSAFE, stream.device(), now);
    now = stream.id();
    return before;
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<RecordedEvent*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    machine().use(stream.device_index(), 0);
    if (*event == nullptr) *event = new RecordedEvent;
    auto& recorded = *static_cast<RecordedEvent*>(*event);
    recorded.stream = slot_of(stream);
    recorded.clock = machine().timeline.now(recorded.stream, *Host::current());
    recorded.time = std::chrono::steady_clock::now();
    const CapturePtr capture = captures().of(recorded.stream);
    recorded.captured = capture != nullptr;
    recorded.capture = capture;
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const auto& recorded = *static_cast<RecordedEvent*>(event);
    const CapturePtr capture = recorded.capture.lock();
    TORCH_CHECK(!recorded.captured || (capture != nullptr && captures().under_way(capture)),
                "CUDA error: operation not permitted on an event last recorded in a capturing "
                "stream (cudaErrorCapturedEvent): its capture is over");
    captures().wait(slot_of(stream), capture);
    machine().timeline.order(slot_of(stream), recorded.clock);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const auto& recorded = *static_cast<RecordedEvent*>(event);
    machine().use(machine().timeline.device(recorded.stream), 0);
    check_captured(recorded, "cudaEventQuery");
    captures().check_unsafe("cudaEventQuery");
    return query(recorded.clock);
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    auto& recorded = *static_cast<RecordedEvent*>(event);
    check_captured(recorded, "cudaEventSynchronize");
    captures().check_unsafe("cudaEventSynchronize");
    stop_host(HostStop::kEvent, "synchronize(event)", recorded.stream, recorded.clock);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "both events must be recorded");
    return std::chrono::duration<double, std::milli>(static_cast<RecordedEvent*>(second)->time -
                                                     static_cast<RecordedEvent*>(first)->time)
        .count();
  }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return captures().of(slot_of(stream)) != nullptr;
  }
#endif

  bool queryStream(const c10::Stream& stream) const override {
    machine().use(stream.device_index(), 0);
    if (const CapturePtr capture = captures().of(slot_of(stream)))
      capture->forbid("cudaStreamQuery of a stream that is captured",
                      "operation not permitted when stream is capturing "
                      "(cudaErrorStreamCaptureUnsupported)");
    captures().check_unsafe("cudaStreamQuery");
    return query(machine().timeline.now(slot_of(stream), *Host::current()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const StreamSlot slot = slot_of(stream);
    stop_host(HostStop::kStream, "synchronize(stream)", slot,
              machine().timeline.now(slot, *Host::current()));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const int index = index_of(cuda(device));
    stop_host(HostStop::kDevice, "synchronize(device)", current_slot(index),
              machine().timeline.all_of(index));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (Block* block = machine().memory.find(data.get()))
      machine().memory.record_stream(*block, slot_of(stream));
  }

 private:
  static bool query(const VectorClock& clock) {
    Machine& m = machine();
    if (!m.timeline.finished(clock)) return false;
    m.timeline.queried(*Host::current(), clock);
    pinned_memory().settle(clock);
    return true;
  }
};

}  // namespace

int current_device() {
  return device_now;
}
int64_t current_stream_id(int device) {
  return stream_now(device);
}
void set_current_device(int device) {
  device_now = device;
}

StreamSlot current_slot(int device) {
  return machine().timeline.slot(device, stream_now(device));
}

StreamSlot slot_of(const c10::Stream& stream) {
  return machine().timeline.slot(index_of(stream.device()), stream.id());
}

void register_guard() {
  for (int device = 0; device < machine().options.devices; ++device)
    for (int stream = 0; stream <= kPool; ++stream) machine().timeline.add_stream(device, stream);
  static auto* const guard = new Guard;
  static const c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::CUDA, guard);
}

}  // namespace lockstep::inline v0::testing::fake
