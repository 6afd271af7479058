// Event: a point in a stream's work.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::device {

// Equals c10::Event, except that on the CPU it is a point that is always reached. An event that was
// never recorded is reached, too. Movable; may outlive the work it was recorded after.
// Thread-safety: one thread at a time.
class LOCKSTEP_API Event {
 public:
  explicit Event(c10::Device device);

  c10::Device device() const { return device_; }  // of the event

  // Records the point after all work submitted so far to this thread's current stream of the
  // device, or to `stream`. Replaces an earlier record.
  void record();
  void record(const c10::Stream& stream);
  // Orders later work of `stream`, which is of a device of the same type, after the point.
  void block(const c10::Stream& stream) const;
  // Whether the point is reached. Never waits.
  bool reached() const;
  // Waits on the host for the point.
  void synchronize() const;

 private:
  c10::Device device_;
  std::optional<c10::Event> event_;  // nullopt: on the CPU
};

}  // namespace lockstep::inline v0::device
