#include "lockstep/comm/groups/making.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0::making_test {
namespace {

using ::testing::StartsWith;

constexpr const char* kReason = "rank 1 could not join the group: pipe2: Too many open files";

// The error with which each rank's part ends, as text.
std::vector<std::string> make(
    const std::vector<std::function<void(const std::shared_ptr<Store>&)>>& parts) {
  const auto store = std::make_shared<HashStore>();
  std::vector<std::string> texts(parts.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < parts.size(); ++r) {
    ranks.emplace_back([&, r] {
      texts[r] = message_of<Error>([&] {
        make_together(store, static_cast<int>(r), [&](const std::shared_ptr<Store>& meeting) {
          parts[r](meeting);
          return 0;
        });
      });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return texts;
}

void fail(const std::shared_ptr<Store>&) {
  throw system_error("pipe2", EMFILE);
}

TEST(Making, AFailureEndsTheOthersWaitsWhateverTheyWaitIn) {
  const auto texts = make({
      [](const auto& store) { store->get("door", Deadline::seconds(60)); },
      fail,
      [](const auto& store) {
        PrefixStore below("host0", store);
        store_barrier(below, "ready", 4, Deadline::seconds(60));
      },
      // A wait for something other than the store.
      [](const auto& store) {
        const Deadline deadline = Deadline::seconds(60);
        while (!deadline.expired()) {
          store->try_get("address");
          std::this_thread::yield();
        }
      },
      // Its connection to a rank that learned of it sooner.
      [](const auto&) { throw PeerLost("rank 0 went away", 0); },
  });
  EXPECT_THAT(texts[1], StartsWith("pipe2: Too many open files"));
  for (const size_t r : {0, 2, 3, 4}) EXPECT_THAT(texts[r], StartsWith(kReason)) << r;
}

TEST(Making, TheFirstReportStaysAndALateRankIsLeftToTheDeadline) {
  const auto texts = make({
      [](const auto& store) { store->get("door", Deadline::seconds(0.3)); },
      [](const auto&) { throw Timeout("rank 0 is late"); },
      [](const auto&) { throw PeerLost("rank 0 went away", 0); },
  });
  EXPECT_THAT(texts[0], ::testing::HasSubstr("door"));
  EXPECT_EQ(texts[1], "rank 0 is late");
  EXPECT_EQ(texts[2], "rank 0 went away");
}

TEST(Making, WhatWasMadeLooksNoMore) {
  const auto store = std::make_shared<HashStore>();
  const auto kept = make_together(store, 0, [](std::shared_ptr<Store> meeting) { return meeting; });
  EXPECT_THROW(make_together(store, 1,
                             [](const std::shared_ptr<Store>&) -> int {
                               throw system_error("pipe2", EMFILE);
                             }),
               SystemError);
  // Longer than the time between two looks.
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_FALSE(kept->try_get("door"));
  EXPECT_THROW(kept->get("door", Deadline::seconds(0.2)), Timeout);
}

}  // namespace
}  // namespace lockstep::inline v0::making_test
