// Event: a point in what a stream is given.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

namespace lockstep::device {

// What c10::Event is, and on the CPU a point that is always reached. An event that was never
// recorded is reached too. Movable; used by one thread at a time, and may outlive what it was
// recorded behind.
class Event {
 public:
  explicit Event(c10::Device device);

  c10::Device device() const { return device_; }

  // Behind what this thread's current stream of the device, or `stream`, has been given so far.
  // Takes the place of an earlier record.
  void record();
  void record(const c10::Stream& stream);
  // What `stream`, of a device of the same type, is given from now on comes after the point.
  void block(const c10::Stream& stream) const;
  // Whether the point is reached. Never waits.
  bool reached() const;
  // The host waits for it.
  void synchronize() const;

 private:
  c10::Device device_;
  std::optional<c10::Event> event_;  // nullopt: on the CPU
};

}  // namespace lockstep::device
