#include "lockstep/core/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace lockstep::inline v0::mutex_test {
namespace {

// A box that holds one number at a time.
class Box {
 public:
  void put(int number) {
    MutexLock lock(mutex_);
    while (full_) changed_.wait(lock);
    number_ = number;
    full_ = true;
    changed_.notify_all();
  }
  int take() {
    MutexLock lock(mutex_);
    while (!full_) changed_.wait(lock);
    full_ = false;
    changed_.notify_all();
    return number_;
  }
  bool fills_until(std::chrono::steady_clock::time_point time) {
    MutexLock lock(mutex_);
    while (!full_) {
      if (!changed_.wait_until(lock, time)) return full_;
    }
    return true;
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  int number_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool full_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

TEST(Mutex, OneWaitsForTheOther) {
  Box box;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) box.put(i);
  });
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(box.take(), i);
  other.join();
}

TEST(Mutex, AWaitEndsWhenItsTimeHasCome) {
  Box box;
  EXPECT_FALSE(box.fills_until(std::chrono::steady_clock::now()));
  box.put(1);
  EXPECT_TRUE(box.fills_until(std::chrono::steady_clock::now()));
}

TEST(Mutex, ALockMayBeGivenBackForAWhile) {
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      MutexLock lock(mutex);
      for (int turn = 0; turn < 1000; ++turn) {
        ++count;
        lock.unlock();
        lock.lock();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

}  // namespace
}  // namespace lockstep::inline v0::mutex_test
