#include "lockstep/core/set_once.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::inline v0::set_once_test {
namespace {

TEST(SetOnce, TheFirstOfManyThreadsSetsItForAll) {
  SetOnce<std::string> word;
  EXPECT_EQ(word.get(), nullptr);
  std::atomic<int> first{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      if (word.set("thread " + std::to_string(i))) ++first;
      while (word.get() == nullptr) std::this_thread::yield();
      EXPECT_EQ(word.get()->substr(0, 7), "thread ");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first, 1);
  const std::string before = *word.get();
  EXPECT_FALSE(word.set("late"));
  EXPECT_EQ(*word.get(), before);
}

}  // namespace
}  // namespace lockstep::inline v0::set_once_test
