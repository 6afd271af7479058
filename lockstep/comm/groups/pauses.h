// Pauses: the times between two looks at a store for keys that other ranks write. Not a public
// header.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace lockstep::inline v0 {

// Starts with 1 ms and doubles up to 20 ms.
class Pauses {
 public:
  void pause() {
    std::this_thread::sleep_for(next_);
    next_ = std::min<std::chrono::milliseconds>(next_ * 2, kLongest);
  }

 private:
  static constexpr std::chrono::milliseconds kLongest{20};
  std::chrono::milliseconds next_{1};
};

}  // namespace lockstep::inline v0
