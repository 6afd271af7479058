#include "lockstep/recover/rank_copy.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::recover::rank_copy_test {
namespace {

RankState state_of(int rank) {
  return {
      .generator = at::full({5}, rank, at::kByte),
      .buffers = {at::arange(6, at::kFloat).view({2, 3}) + rank, at::full({}, 7 + rank, at::kLong)},
      .extra = std::string(static_cast<size_t>(rank), 'x')};
}

void expect_state(const RankState& state, int rank) {
  const RankState expected = state_of(rank);
  EXPECT_TRUE(at::equal(state.generator, expected.generator));
  ASSERT_EQ(state.buffers.size(), expected.buffers.size());
  for (size_t i = 0; i < expected.buffers.size(); ++i)
    EXPECT_TRUE(at::equal(state.buffers[i], expected.buffers[i]));
  EXPECT_EQ(state.extra, expected.extra);
}

TEST(RankCopy, IsUnpackedAsItWasPacked) {
  for (const int rank : {0, 3})
    expect_state(unpack(pack(state_of(rank)), state_of(9).buffers), rank);
  EXPECT_TRUE(unpack(pack({.generator = at::full({1}, 1, at::kByte)}), {}).extra.empty());
}

TEST(RankCopy, WhatIsNoCopyOfThisModelIsRefused) {
  const at::Tensor bytes = pack(state_of(2));
  EXPECT_THROW(unpack(bytes, {}), DataError);
  EXPECT_THROW(unpack(bytes.narrow(0, 0, 20), state_of(0).buffers), DataError);
  EXPECT_THROW(unpack(bytes.narrow(0, 0, 3), {}), DataError);
  at::Tensor damaged = bytes.clone();
  damaged.narrow(0, 0, 8).fill_(255);
  EXPECT_THROW(unpack(damaged, state_of(0).buffers), DataError);
}

TEST(RankCopy, NeighboursKeepEachOthers) {
  for (const int size : {1, 2, 3, 5}) {
    testing::run_threads(size, [size](Communicator& comm) {
      const Copies copies = exchange_copies(comm, pack(state_of(comm.rank())), 1);
      EXPECT_EQ(copies.size(), static_cast<size_t>(std::min(size - 1, 2)));
      for (const auto& [rank, bytes] : copies) {
        EXPECT_NE(rank, comm.rank());
        expect_state(unpack(bytes, state_of(0).buffers), rank);
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::inline v0::recover::rank_copy_test
