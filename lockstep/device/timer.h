// DeviceTimer: how long a device took for what it was given between two points.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>

namespace lockstep::device {

// Measured by the device itself, so that the host neither waits nor measures its own time: start()
// and stop() are given to the stream, the result is read when the device has come by. On the CPU it
// is the time between the two calls. Used by one thread at a time, and as often as one likes.
class DeviceTimer {
 public:
  explicit DeviceTimer(c10::Device device);

  // Behind what this thread's current stream of the device has been given so far.
  void start();
  // Likewise. Throws InvalidArgument where start() was not called since the last stop().
  void stop();

  // Seconds between the last start() and its stop(); nullopt while the device has not come by, and
  // before that stop(). Never waits.
  std::optional<double> seconds() const;
  // The same; the host waits for the device. Throws InvalidArgument before stop().
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

}  // namespace lockstep::device
