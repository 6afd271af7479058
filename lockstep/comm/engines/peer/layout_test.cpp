#include "lockstep/comm/engines/peer/layout.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <vector>

namespace lockstep::inline v0::peer_layout_test {
namespace {

using namespace lockstep::peer;

constexpr int kRanks = 3;

// Every rank's memory of int32, and the slots through which a call passes window by window.
struct Ranks {
  std::array<std::vector<int32_t>, kRanks> in, out;
  std::array<std::vector<std::byte>, kRanks> slots;

  std::byte* data(std::vector<int32_t>& values) {
    return reinterpret_cast<std::byte*>(values.data());
  }
  // Runs the calls as the engine does, except that reductions are added here.
  void run(const std::array<Call, kRanks>& calls, int64_t slot_bytes) {
    int64_t windows = 0;
    std::array<Layout, kRanks> layouts;
    for (int r = 0; r < kRanks; ++r) {
      layouts[r] = lay_out(calls[r], kRanks, slot_bytes);
      windows = std::max(windows, layouts[r].windows);
      slots[r].assign(static_cast<size_t>(slot_bytes), std::byte{0xff});
    }
    for (int64_t window = 0; window < windows; ++window) {
      for (int r = 0; r < kRanks; ++r) {
        for (const Gift& gift : gifts(calls[r], layouts[r], window, r)) {
          ASSERT_LE(gift.slot + gift.bytes, slot_bytes);
          std::memcpy(slots[r].data() + gift.slot, gift.from, static_cast<size_t>(gift.bytes));
        }
      }
      for (int r = 0; r < kRanks; ++r) {
        for (const Take& take : takes(calls[r], layouts[r], window, r)) {
          auto* to = reinterpret_cast<int32_t*>(take.to);
          for (int64_t i = 0; i < take.elements; ++i) {
            int32_t sum = 0;
            for (int from = 0; from < kRanks; ++from) {
              if (take.from >= 0 && from != take.from) continue;
              int32_t value = 0;
              std::memcpy(&value, slots[from].data() + take.slot + i * 4, 4);
              sum += value;
            }
            to[i] = sum;
          }
        }
      }
    }
  }
};

std::vector<int32_t> numbers(int64_t count, int32_t first) {
  std::vector<int32_t> result(static_cast<size_t>(count));
  std::iota(result.begin(), result.end(), first);
  return result;
}

Call call_of(Op op, Ranks& ranks, int r) {
  Call call;
  call.op = op;
  call.dtype = at::kInt;
  call.root = 1;
  call.input = ranks.data(ranks.in[r]);
  call.output = ranks.data(ranks.out[r]);
  return call;
}

// Parts that do not fit a slot, an empty one among them.
const std::vector<int64_t> kCounts = {300, 0, 70};

TEST(PeerLayout, PartsOfDifferentLengthsAreGatheredInRankOrder) {
  Ranks ranks;
  std::array<Call, kRanks> calls;
  std::vector<int32_t> all;
  for (int r = 0; r < kRanks; ++r) {
    ranks.in[r] = numbers(kCounts[r], 1000 * r);
    all.insert(all.end(), ranks.in[r].begin(), ranks.in[r].end());
    ranks.out[r].assign(370, -1);
    calls[r] = call_of(Op::kAllGather, ranks, r);
    calls[r].counts = kCounts;
  }
  ranks.run(calls, 512);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(ranks.out[r], all);
}

// This rank's own part has the same address as another one, which is empty.
TEST(PeerLayout, InPlaceOnlyTheOwnPartIsThere) {
  Ranks ranks;
  std::array<Call, kRanks> calls;
  for (int r = 0; r < kRanks; ++r) {
    ranks.out[r].assign(370, -1);
    calls[r] = call_of(Op::kAllGather, ranks, r);
    calls[r].counts = kCounts;
    const int64_t before = r == 0 ? 0 : 300;
    for (int64_t i = 0; i < kCounts[r]; ++i)
      ranks.out[r][static_cast<size_t>(before + i)] = static_cast<int32_t>(before + i);
    calls[r].input = calls[r].output + before * 4;
  }
  ranks.run(calls, 512);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(ranks.out[r], numbers(370, 0)) << r;
}

TEST(PeerLayout, AnUnevenAllToAllGoesOnUntilTheLongestPartIsThrough) {
  Ranks ranks;
  std::array<Call, kRanks> calls;
  // Rank r gives 100 r + d to rank d.
  for (int r = 0; r < kRanks; ++r) {
    calls[r].counts.clear();
    int64_t given = 0, taken = 0;
    std::vector<int64_t> counts, recv_counts;
    for (int d = 0; d < kRanks; ++d) {
      counts.push_back(100 * r + d);
      recv_counts.push_back(100 * d + r);
      given += counts.back();
      taken += recv_counts.back();
    }
    ranks.in[r] = numbers(given, 10'000 * r);
    ranks.out[r].assign(static_cast<size_t>(taken), -1);
    calls[r] = call_of(Op::kAllToAll, ranks, r);
    calls[r].counts = counts;
    calls[r].recv_counts = recv_counts;
  }
  ranks.run(calls, 3 * 128);
  for (int d = 0; d < kRanks; ++d) {
    std::vector<int32_t> expected;
    for (int r = 0; r < kRanks; ++r) {
      int64_t before = 0;
      for (int i = 0; i < d; ++i) before += 100 * r + i;
      const auto part = numbers(100 * r + d, static_cast<int32_t>(10'000 * r + before));
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_EQ(ranks.out[d], expected) << d;
  }
}

TEST(PeerLayout, ReductionsAndWhatTheRootHas) {
  Ranks ranks;
  std::array<Call, kRanks> calls;
  for (int r = 0; r < kRanks; ++r) {
    ranks.in[r] = numbers(370, r);
    ranks.out[r].assign(r == 1 ? 370 : static_cast<size_t>(kCounts[r]), -1);
    calls[r] = call_of(Op::kReduceScatter, ranks, r);
    calls[r].counts = kCounts;
  }
  ranks.run(calls, 3 * 128);
  EXPECT_EQ(ranks.out[0][299], 3 * 299 + 3);
  EXPECT_EQ(ranks.out[2][0], 3 * 300 + 3);
  for (int r = 0; r < kRanks; ++r) {
    calls[r] = call_of(Op::kReduce, ranks, r);
    calls[r].count = 370;
  }
  ranks.run(calls, 512);
  EXPECT_EQ(ranks.out[1][369], 3 * 369 + 3);
  EXPECT_EQ(ranks.out[2][0], 3 * 300 + 3) << "not the root's";
  for (int r = 0; r < kRanks; ++r) {
    calls[r] = call_of(Op::kScatter, ranks, r);
    calls[r].counts = kCounts;
  }
  ranks.run(calls, 3 * 128);
  EXPECT_EQ(ranks.out[0][299], 300) << "the root's numbers begin with 1";
  EXPECT_EQ(ranks.out[2][69], 370);
}

TEST(PeerLayout, SharesCoverEveryElementOnce) {
  for (const int64_t elements : {0, 1, 127, 128, 129, 1000, 4096}) {
    int64_t next = 0;
    for (int r = 0; r < 5; ++r) {
      const Share own = share(elements, r, 5);
      EXPECT_EQ(own.begin, next);
      next += own.elements;
    }
    EXPECT_EQ(next, elements);
  }
}

}  // namespace
}  // namespace lockstep::inline v0::peer_layout_test
