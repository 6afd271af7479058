#include "lockstep/core/futex.h"

#include <gtest/gtest.h>

#include <thread>

#include "lockstep/core/deadline.h"

namespace lockstep::inline v0 {
namespace futex_test {

TEST(Futex, WaitsNoLongerThanSaidAndNotForAnotherValue) {
  std::atomic<uint32_t> word{3};
  const Deadline start = Deadline::seconds(60);
  futex_wait(word, 4, std::chrono::seconds(30));
  futex_wait(word, 3, std::chrono::milliseconds(1));
  futex_wait(word, 3, std::chrono::seconds(-1));
  EXPECT_LT(start.elapsed_seconds(), 20);
}

TEST(Futex, IsWoken) {
  std::atomic<uint32_t> word{0};
  const Deadline start = Deadline::seconds(60);
  std::thread other([&] {
    word.store(1);
    futex_wake_all(word);
  });
  while (word.load() == 0) futex_wait(word, 0, std::chrono::seconds(50));
  other.join();
  EXPECT_LT(start.elapsed_seconds(), 40);
}

}  // namespace futex_test
}  // namespace lockstep::inline v0
