// DeviceTimer: how long a device takes for the work between two points.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::device {

// The device measures the time, so the host neither waits nor measures its own time: start() and
// stop() are submitted to the stream, and the result is read after the device has passed them. On
// the CPU it is the time between the two calls. May be reused any number of times.
// Thread-safety: one thread at a time.
class LOCKSTEP_API DeviceTimer {
 public:
  explicit DeviceTimer(c10::Device device);

  // Starts after the work submitted so far to this thread's current stream of the device.
  void start();
  // Stops after the work submitted so far.
  // Throws: InvalidArgument if start() was not called since the last stop().
  void stop();

  // Seconds between the last start() and its stop(); nullopt until the device has passed stop().
  // Never waits.
  std::optional<double> seconds() const;
  // The same, but waits on the host for the device.
  // Throws: InvalidArgument before stop().
  double wait() const;

 private:
  enum class State { kIdle, kRunning, kStopped };
  struct Events {
    c10::Event first, last;
  };

  c10::Device device_;
  State state_ = State::kIdle;
  std::optional<Events> events_;  // nullopt: on the CPU
  std::chrono::steady_clock::time_point first_{}, last_{};
};

}  // namespace lockstep::inline v0::device
