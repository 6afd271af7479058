// StepClock: measures the parts of a step's time.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "lockstep/timeline/timeline.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

// For one step, on one thread:
//
//   StepClock clock(strategy);
//   clock.data([&] { ... });  clock.forward(...);  clock.backward(...);  clock.optimizer(...);
//   result.times = clock.times();
//
// The time in which the strategy waited for other ranks is not part of backward and optimizer. Each
// function may be called several times, also within another, which then does not count that time.
// They return what `work` returns. A timeline gets them as spans; there a backward begins where the
// forward within it has ended. Where the model is divided, one call computes the loss and the
// gradients, and both are one span.
class StepClock {
 public:
  // `timeline`: may be null.
  explicit StepClock(Strategy& strategy, Timeline* timeline = nullptr)
      : strategy_(strategy),
        waited_(strategy.gradients().waiting()),
        in_one_(strategy.traits().divides_model),
        timeline_(timeline) {}

  template <typename Work>
  auto data(const Work& work) {
    const TimelineSpan span(timeline_, "data");
    return timed(times_.data, work);
  }
  template <typename Work>
  auto forward(const Work& work) {
    const AfterForward after(*this);
    const TimelineSpan span(in_backward_ && in_one_ ? nullptr : timeline_, "forward");
    return timed(times_.forward, work);
  }
  template <typename Work>
  auto backward(const Work& work) {
    const WithinBackward within(*this);
    return timed(times_.backward, work);
  }
  template <typename Work>
  auto optimizer(const Work& work) {
    const TimelineSpan span(timeline_, "optimizer");
    return timed(times_.optimizer, work);
  }
  const StepTimes& times() const { return times_; }

 private:
  template <typename Work>
  auto timed(double& part, const Work& work) {
    const Lap lap(*this, part);
    return work();
  }

  struct Lap {
    Lap(StepClock& the_clock, double& the_part) : clock(the_clock), part(the_part) {}
    Lap(const Lap&) = delete;
    ~Lap() {
      const double waited =
          clock.strategy_.gradients().waiting() - clock.waited_ - clock.times_.waiting;
      const double all =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      clock.times_.waiting += waited;
      part += all - waited - clock.inner_;
      clock.inner_ = before + all;
    }
    StepClock& clock;
    double& part;
    double before = std::exchange(clock.inner_, 0);  // of others within the same one
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  };

  // The span of a backward, from the end of its forward to its own.
  struct WithinBackward {
    explicit WithinBackward(StepClock& the_clock) : clock(the_clock) {
      clock.in_backward_ = true;
      if (clock.in_one_) clock.backward_.emplace(clock.timeline_, "forward and backward");
    }
    WithinBackward(const WithinBackward&) = delete;
    ~WithinBackward() {
      clock.in_backward_ = false;
      clock.backward_.reset();
    }
    StepClock& clock;
  };
  struct AfterForward {
    explicit AfterForward(StepClock& the_clock) : clock(the_clock) {
      if (!clock.in_one_) clock.backward_.reset();
    }
    AfterForward(const AfterForward&) = delete;
    ~AfterForward() {
      if (clock.in_backward_ && !clock.in_one_)
        clock.backward_.emplace(clock.timeline_, "backward");
    }
    StepClock& clock;
  };

  Strategy& strategy_;
  double waited_;
  double inner_ = 0;  // seconds of those within the one that is under way
  bool in_one_;       // one call computes the loss and the gradients
  Timeline* timeline_;
  bool in_backward_ = false;
  std::optional<TimelineSpan> backward_;
  StepTimes times_;
};

}  // namespace lockstep::inline v0
