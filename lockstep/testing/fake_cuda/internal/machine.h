// Machine: all that the devices of this process are made of. Not a public header.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/internal/host.h"
#include "lockstep/testing/fake_cuda/internal/memory.h"
#include "lockstep/testing/fake_cuda/internal/place.h"
#include "lockstep/testing/fake_cuda/internal/timeline.h"

namespace lockstep::inline v0::testing::fake {

// The races found. Any thread may call.
class RaceLog {
 public:
  void add(RaceKind kind, PlacePtr earlier, PlacePtr later, PlacePtr made);
  std::vector<Race> take();

 private:
  struct Found {
    RaceKind kind;
    PlacePtr earlier;
    PlacePtr later;
    PlacePtr made;
  };
  Mutex mutex_;
  std::vector<Found> found_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<std::string> known_ LOCKSTEP_GUARDED_BY(mutex_);
};

struct Machine {
  explicit Machine(const FakeCudaOptions& of)
      : options(of), memory(of.devices, static_cast<size_t>(of.memory_bytes)) {}

  const FakeCudaOptions options;
  Timeline timeline;
  DeviceMemory memory;
  RaceLog races;
  Tally tally;
  std::atomic<bool> peer_access = true;        // between all devices
  std::atomic<int64_t> on_failing_device = 0;  // operations of FakeCudaOptions::failing_device

  // Throws the device's error if it has failed; `operations`: after it has done so many more.
  void use(int device, int64_t operations);
};

// The process's; only after FakeCuda::install().
Machine& machine();
// Nullptr before that.
Machine* installed_machine();

// The calling thread's current stream of a device.
StreamSlot current_slot(int device);
StreamSlot slot_of(const c10::Stream& stream);

// Where the calling thread is in the program.
PlacePtr place_of(std::string operation, StreamSlot stream);

// The host waits for `clock`, and notes that it did.
void stop_host(HostStop cause, std::string operation, StreamSlot stream, const VectorClock& clock);

// To both tallies.
void count(const FakeCudaCounts& counts);

}  // namespace lockstep::inline v0::testing::fake
