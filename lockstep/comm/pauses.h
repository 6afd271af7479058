// Pauses: between looks at a store for what others are to write there. Not a public header.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace lockstep {

// 1 ms, twice as long each time, at most 20 ms.
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

}  // namespace lockstep
