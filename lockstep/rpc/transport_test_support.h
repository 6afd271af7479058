// Helpers of the transport's tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/secret.h"
#include "lockstep/rpc/internal/transport.h"

namespace lockstep::inline v0::rpc::internal {

inline Deadline soon() {
  return Deadline::seconds(60);
}
inline Secret secret() {
  return Secret::from_text("a job's");
}

// The reasons why links were lost.
class Losses {
 public:
  void add(const std::string& why) {
    const std::lock_guard lock(mutex_);
    reasons_.push_back(why);
    changed_.notify_all();
  }
  // Waits until there are `count` of them.
  std::vector<std::string> wait(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60),
                                  [&] { return reasons_.size() >= count; }));
    return reasons_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> reasons_;
};

}  // namespace lockstep::inline v0::rpc::internal
