// The steps of a call on a device's memory: the work that the device is given before, between and
// after the calls of the host's engine, in which the ranks meet. Not a public header.
#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/backend/types.h"
#include "lockstep/device/event.h"

namespace lockstep::inline v0::piped {

// A part of a call. Its driver makes the requests one after another.
class Part {
 public:
  virtual ~Part() = default;
  // Gives the device the work before the engine's first call. Returns false if there is no room for
  // it now.
  virtual bool begin() = 0;
  // After begin(): whether the engine may have its next call. Never waits for the device.
  virtual bool ready() = 0;
  // The engine's next call.
  virtual const Call& next() = 0;
  // After that call has completed: gives the device the work that follows. Returns its completion,
  // or null where the engine must be called once more.
  virtual std::shared_ptr<const device::Event> advance() = 0;
  // Whether later collectives reach the engine only after this part has completed.
  virtual bool alone() const = 0;
};

using Parts = std::vector<std::unique_ptr<Part>>;

// The resources that parts use.
// Thread-safety: one thread at a time, except parts_of().
class DataPath {
 public:
  virtual ~DataPath() = default;
  // The parts of `call`. The call's memory, record and note must stay valid until the parts are
  // gone, and this object outlives them. From any thread.
  virtual Parts parts_of(const Call& call) = 0;
  // Frees what the device has finished with. Returns whether there is more.
  virtual bool give_back() = 0;
  // Orders later work of `stream` after all that the device was given.
  virtual void block(const c10::Stream& stream) = 0;
  // Whether the device has finished all its work, and the devices of the ranks that the engine
  // `host` has not lost no longer use this rank's memory. Nothing may be added afterwards.
  virtual bool through(const Backend& host) = 0;
  virtual SymmetricMemory allocate_symmetric(int64_t bytes) {  // Backend's
    (void)bytes;
    return {};
  }
  // Called while the device is late: throws PeerLost where it waits for a rank that is lost.
  // `host`: the engine.
  virtual void check(const Backend& host) const { (void)host; }
};

}  // namespace lockstep::inline v0::piped
