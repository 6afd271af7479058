// How calls on a device's memory get across: what the device is given before, between and after the
// calls of the host's engine by which the ranks meet. Not a public header.
#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/types.h"
#include "lockstep/device/event.h"

namespace lockstep::piped {

// A part of a call. Its requests are made by whoever drives it, one after another.
class Part {
 public:
  virtual ~Part() = default;
  // Gives the device what comes before the engine's first call. False: there is no room for it now.
  virtual bool begin() = 0;
  // After begin(): whether the engine may have its next call. Never waits for the device.
  virtual bool ready() = 0;
  // That call.
  virtual const Call& next() = 0;
  // After the call's end: gives the device what follows. The end of that, or null where the engine
  // is to be called once more.
  virtual std::shared_ptr<const device::Event> advance() = 0;
  // Whether the engine gets nothing of later collectives before this one's end.
  virtual bool alone() const = 0;
};

using Parts = std::vector<std::unique_ptr<Part>>;

// What parts stand on. One thread at a time, but for parts_of().
class Way {
 public:
  virtual ~Way() = default;
  // `call`, whose memory, record and note stay until the parts are gone. Outlived by this. From any
  // thread.
  virtual Parts parts_of(const Call& call) = 0;
  // Gives back what the device is through with; whether there is more.
  virtual bool give_back() = 0;
  // What `stream` is given from now on comes after all that the device was given.
  virtual void block(const c10::Stream& stream) = 0;
  // Whether the device is through with all that it was given, and those of the ranks that `host`, the engine, has not
  // lost are with what is this one's. Nothing more may follow.
  virtual bool through(const Backend& host) = 0;
  virtual SymmetricMemory allocate_symmetric(int64_t bytes) {  // Backend's
    (void)bytes;
    return {};
  }
  // Asked while the device is late with what was given to it: throws PeerLost where it waits for
  // what never comes. `host`: the engine.
  virtual void check(const Backend& host) const { (void)host; }
};

}  // namespace lockstep::piped
