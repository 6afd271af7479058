#include "lockstep/comm/engines/piped/pieces.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

namespace lockstep::inline v0::pieces_test {
namespace {

using piped::cut;
using piped::Piece;
using piped::Span;

std::array<std::byte, 4096> device_in, device_out;

Call call_of(Op op, std::vector<int64_t> counts) {
  Call call;
  call.op = op;
  call.dtype = at::kFloat;
  call.input = device_in.data();
  call.output = device_out.data();
  call.counts = std::move(counts);
  call.uniform = true;
  return call;
}

// Counts bytes: each byte of the device's memory is copied once, and pieces do not share host
// memory.
int64_t covered(const std::vector<Piece>& pieces, std::vector<Span> Piece::* way,
                const std::byte* device, int64_t bytes) {
  std::vector<int> times(static_cast<size_t>(bytes), 0);
  for (const Piece& piece : pieces) {
    for (const Span& span : piece.*way) {
      EXPECT_LE(span.host + span.bytes, piece.bytes);
      for (int64_t i = 0; i < span.bytes; ++i)
        ++times[static_cast<size_t>(span.device - device + i)];
    }
  }
  for (const int n : times) EXPECT_EQ(n, 1);
  return std::accumulate(times.begin(), times.end(), int64_t{0});
}

TEST(Pieces, AnAllReduceInPlaceGoesDownAndUpInSlots) {
  Call call = call_of(Op::kAllReduce, {});
  call.output = device_in.data();
  call.count = 70;
  call.sequence = 7;
  const std::vector<Piece> pieces = cut(call, 1, 2, 128);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].call.count, 32);
  EXPECT_EQ(pieces[2].call.count, 6);
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.call.sequence, 7u);
    EXPECT_EQ(piece.input, piece.output) << "in place there too";
    EXPECT_EQ(piece.bytes, piece.call.count * 4);
  }
  EXPECT_EQ(covered(pieces, &Piece::down, device_in.data(), 280), 280);
  EXPECT_EQ(covered(pieces, &Piece::up, device_in.data(), 280), 280);
  EXPECT_EQ(cut(call, 1, 2, 280).size(), 1u) << "as long as a slot";
  EXPECT_EQ(cut(call, 1, 2, 276).size(), 2u) << "longer";
  EXPECT_EQ(cut(call, 1, 2, 0).size(), 1u) << "nothing is cut";
}

TEST(Pieces, UnequalPartsAreCutAlikeOnAllRanks) {
  const std::vector<int64_t> counts{5, 0, 23};
  for (int rank = 0; rank < 3; ++rank) {
    Call call = call_of(Op::kAllGather, counts);
    call.uniform = false;
    const std::vector<Piece> pieces = cut(call, rank, 3, 96);  // 8 elements a part
    ASSERT_EQ(pieces.size(), 3u);
    EXPECT_EQ(pieces[0].call.counts, (std::vector<int64_t>{5, 0, 8}));
    EXPECT_EQ(pieces[1].call.counts, (std::vector<int64_t>{0, 0, 8}));
    EXPECT_EQ(pieces[2].call.counts, (std::vector<int64_t>{0, 0, 7}));
    const int64_t own = counts[static_cast<size_t>(rank)] * 4;
    EXPECT_EQ(covered(pieces, &Piece::down, device_in.data(), own), own);
    EXPECT_EQ(covered(pieces, &Piece::up, device_out.data(), 112), 112);
  }
}

TEST(Pieces, AnOwnPartInsideTheResultLiesInsideOfItOnTheHost) {
  Call call = call_of(Op::kAllGather, {10, 10, 10});
  call.input = call.output + 40;
  for (const Piece& piece : cut(call, 1, 3, 60)) {  // 5 elements a part
    EXPECT_EQ(piece.input, 20);
    EXPECT_EQ(piece.bytes, 60) << "no memory of its own";
  }
}

TEST(Pieces, WhatEachRankOfARootedCallCopies) {
  Call broadcast = call_of(Op::kBroadcast, {});
  broadcast.input = nullptr;
  broadcast.count = 8;
  broadcast.root = 0;
  const Piece sent = cut(broadcast, 0, 2, 0).front(), got = cut(broadcast, 1, 2, 0).front();
  EXPECT_EQ(sent.down.size(), 1u);
  EXPECT_TRUE(sent.up.empty()) << "the root has it";
  EXPECT_TRUE(got.down.empty());
  EXPECT_EQ(got.up.size(), 1u);

  Call scatter = call_of(Op::kScatter, {4, 4});
  scatter.input = nullptr;
  EXPECT_TRUE(cut(scatter, 1, 2, 0).front().down.empty());
  EXPECT_EQ(cut(scatter, 1, 2, 0).front().input, -1);
  Call reduce = call_of(Op::kReduce, {});
  reduce.output = nullptr;
  reduce.count = 4;
  EXPECT_TRUE(cut(reduce, 1, 2, 0).front().up.empty());
}

TEST(Pieces, MessagesAndWhatOnlyTwoRanksKnowGoWhole) {
  Call send = call_of(Op::kSend, {});
  send.output = nullptr;
  send.count = 100;
  EXPECT_EQ(cut(send, 0, 2, 16).size(), 1u);
  Call unequal = call_of(Op::kAllToAll, {3, 50});
  unequal.recv_counts = {3, 2};
  unequal.uniform = false;
  EXPECT_EQ(cut(unequal, 0, 2, 16).size(), 1u);
  Call equal = call_of(Op::kAllToAll, {6, 6});
  equal.recv_counts = {6, 6};
  const std::vector<Piece> pieces = cut(equal, 0, 2, 16);  // 2 elements a part
  EXPECT_EQ(pieces.size(), 3u);
  EXPECT_EQ(covered(pieces, &Piece::down, device_in.data(), 48), 48);
  EXPECT_EQ(covered(pieces, &Piece::up, device_out.data(), 48), 48);
}

}  // namespace
}  // namespace lockstep::inline v0::pieces_test
