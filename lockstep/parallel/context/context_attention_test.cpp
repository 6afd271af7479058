#include "lockstep/parallel/context/context_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/parallel/context/context_layout.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::context_attention_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWidth = 6;
constexpr ContextWay kWays[] = {ContextWay::kRing, ContextWay::kHeads};

struct Heads {
  int64_t queries = 4;
  int64_t keys = 4;
};

at::Tensor attention(ContextWay way, const Communicator& comm, const at::Tensor& q,
                     const at::Tensor& k, const at::Tensor& v,
                     const std::vector<int64_t>& lengths) {
  return way == ContextWay::kRing ? ring_attention(comm, q, k, v, lengths)
                                  : heads_attention(comm, q, k, v, lengths);
}

// Of a whole batch, [rows, heads, width].
struct Batch {
  std::vector<int64_t> lengths;
  at::Tensor q, k, v, dmixed;
};
Batch batch_of(const std::vector<int64_t>& lengths, const Heads& heads) {
  const int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const auto values = [&](int64_t many, double scale, double from) {
    return (torch::arange(rows * many * kWidth, at::kDouble) * scale + from)
        .sin()
        .view({rows, many, kWidth});
  };
  return {lengths, values(heads.queries, 1.37, 0.1) * 2, values(heads.keys, 2.11, 0.5) * 2,
          values(heads.keys, 0.77, 0.9), values(heads.queries, 1.91, 0.3)};
}

// Sequence by sequence, every score.
at::Tensor plain(const Batch& batch, const at::Tensor& q, const at::Tensor& k,
                 const at::Tensor& v) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  const int64_t group = q.size(1) / k.size(1);
  for (const int64_t length : batch.lengths) {
    const auto of = [&](const at::Tensor& x, int64_t times) {
      return x.narrow(0, begin, length).repeat_interleave(times, 1).transpose(0, 1);
    };
    const at::Tensor future =
        torch::full({length, length}, -std::numeric_limits<double>::infinity(), at::kDouble)
            .triu(1);
    const at::Tensor scores =
        of(q, 1).matmul(of(k, group).transpose(1, 2)) / std::sqrt(static_cast<double>(kWidth));
    parts.push_back((scores + future).softmax(-1).matmul(of(v, group)).transpose(0, 1));
    begin += length;
  }
  return torch::cat(parts);
}

struct Expected {
  at::Tensor mixed, dq, dk, dv;
};
Expected expected_of(const Batch& batch) {
  const at::Tensor q = batch.q.clone().requires_grad_(), k = batch.k.clone().requires_grad_(),
                   v = batch.v.clone().requires_grad_();
  const at::Tensor mixed = plain(batch, q, k, v);
  mixed.backward(batch.dmixed);
  return {mixed.detach(), q.grad(), k.grad(), v.grad()};
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return a.numel() == 0 ? 0 : (a.to(at::kDouble) - b).abs().max().item<double>();
}

at::Tensor rows_of(const std::vector<int64_t>& lengths, const Communicator& comm) {
  return torch::tensor(context_rows(lengths, comm.rank(), comm.size()), at::kLong);
}

const std::vector<std::vector<int64_t>> kBatches{{16},      {5, 1, 9, 9, 2}, {1},
                                                 {7, 7, 7}, {3, 2, 31},      {2, 2, 2, 2}};

TEST(ContextAttention, IsOneProcessesForwardAndBackward) {
  for (const Heads heads : {Heads{4, 4}, {4, 2}, {4, 1}, {6, 2}, {6, 3}, {3, 3}}) {
    for (const auto& lengths : kBatches) {
      const Batch batch = batch_of(lengths, heads);
      const Expected expected = expected_of(batch);
      for (const ContextWay way : kWays) {
        for (int size = 1; size <= 4; ++size) {
          if (way == ContextWay::kHeads && heads.queries % size != 0) continue;
          testing::run_threads(size, [&](Communicator& comm) {
            const at::Tensor own = rows_of(lengths, comm);
            const auto mine = [&](const at::Tensor& x) { return x.index_select(0, own); };
            for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
              const double tolerance = type == at::kDouble  ? 1e-12
                                       : type == at::kFloat ? 1e-5
                                                            : 0.05;
              const auto input = [&](const at::Tensor& x) {
                return mine(x).to(type).requires_grad_();
              };
              const at::Tensor q = input(batch.q), k = input(batch.k), v = input(batch.v);
              const at::Tensor mixed = attention(way, comm, q, k, v, lengths);
              EXPECT_EQ(mixed.scalar_type(), type);
              mixed.backward(mine(batch.dmixed).to(type));
              EXPECT_LT(difference(mixed, mine(expected.mixed)), tolerance);
              EXPECT_LT(difference(q.grad(), mine(expected.dq)), tolerance);
              EXPECT_LT(difference(k.grad(), mine(expected.dk)), tolerance);
              EXPECT_LT(difference(v.grad(), mine(expected.dv)), tolerance);
            }
          });
        }
      }
    }
  }
}

// Long enough that a few heads are computed at a time.
TEST(ContextAttention, LongSequencesTooAndInEqualBitsEveryTime) {
  const std::vector<int64_t> lengths{3000, 1200};
  torch::manual_seed(4);
  const auto values = [&](int64_t many) { return torch::randn({4200, many, 64}); };
  const at::Tensor q = values(4), k = values(2), v = values(2), dmixed = values(4);
  std::vector<at::Tensor> whole;
  testing::run_threads(1, [&](Communicator& comm) {
    const auto input = [&](const at::Tensor& x) { return x.to(at::kDouble).requires_grad_(); };
    const at::Tensor a = input(q), b = input(k), c = input(v);
    const at::Tensor mixed = ring_attention(comm, a, b, c, lengths);
    mixed.backward(dmixed.to(at::kDouble));
    whole = {mixed.detach(), a.grad(), b.grad(), c.grad()};
  });
  for (const ContextWay way : kWays) {
    std::vector<std::vector<std::vector<at::Tensor>>> runs(2,
                                                           std::vector<std::vector<at::Tensor>>(2));
    for (auto& run : runs) {
      testing::run_threads(2, [&](Communicator& comm) {
        const at::Tensor own = rows_of(lengths, comm);
        const auto mine = [&](const at::Tensor& x) { return x.index_select(0, own); };
        const auto input = [&](const at::Tensor& x) { return mine(x).requires_grad_(); };
        const at::Tensor a = input(q), b = input(k), c = input(v);
        const at::Tensor mixed = attention(way, comm, a, b, c, lengths);
        mixed.backward(mine(dmixed));
        run[static_cast<size_t>(comm.rank())] = {mixed.detach(), a.grad(), b.grad(), c.grad()};
        for (size_t i = 0; i < 4; ++i)
          EXPECT_LT(difference(run[static_cast<size_t>(comm.rank())][i], mine(whole[i])), 1e-4);
      });
    }
    for (size_t rank = 0; rank < 2; ++rank)
      for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(runs[0][rank][i], runs[1][rank][i]));
  }
}

TEST(ContextAttention, WhatIsSentIsWhatTheorySays) {
  const std::vector<int64_t> lengths{24, 7};
  const Batch batch = batch_of(lengths, {8, 4});
  for (const int size : {1, 2, 4}) {
    testing::run_threads(size, [&](Communicator& comm) {
      const at::Tensor own = rows_of(lengths, comm);
      const auto mine = [&](const at::Tensor& x) {
        return x.index_select(0, own).requires_grad_();
      };
      const auto rows = [&](int64_t back) {
        const int64_t rank = (comm.rank() - back + 2 * size) % size;
        return static_cast<uint64_t>(context_count(lengths, rank, size));
      };
      constexpr uint64_t kHead = kWidth * sizeof(double);
      {
        const at::Tensor mixed =
            ring_attention(comm, mine(batch.q), mine(batch.k), mine(batch.v), lengths);
        const auto forward = comm.stats();
        uint64_t once = 0, all = 0;  // blocks that pass by here: all but the one that ends here
        for (int64_t turn = 0; turn < size; ++turn) {
          all += rows(turn) * 2 * 4 * kHead;
          if (turn + 1 < size) once += rows(turn) * 2 * 4 * kHead;
        }
        EXPECT_EQ(forward.of(Op::kSend).calls, static_cast<uint64_t>(size - 1));
        EXPECT_EQ(forward.of(Op::kSend).bytes, once);
        mixed.sum().backward();
        const auto backward = comm.stats();
        EXPECT_EQ(backward.of(Op::kSend).bytes - once, once + (size == 1 ? 0 : all));
        EXPECT_EQ(backward.collectives, 0u);
      }
      {
        const at::Tensor mixed =
            heads_attention(comm, mine(batch.q), mine(batch.k), mine(batch.v), lengths);
        const auto forward = comm.stats().of(Op::kAllToAll);
        // Rows for heads: queries, keys, values; back: what is mixed, of all rows and some heads.
        const uint64_t all = 31, own_heads = 8 / static_cast<uint64_t>(size);
        const uint64_t there = rows(0) * (8 + 2 * 4) * kHead, here = all * own_heads * kHead;
        EXPECT_EQ(forward.bytes, there + here);
        mixed.sum().backward();
        const auto backward = comm.stats().of(Op::kAllToAll);
        EXPECT_EQ(backward.bytes - forward.bytes,
                  rows(0) * 8 * kHead + all * 2 * own_heads * kHead);
        EXPECT_EQ(backward.calls, 4u);
      }
    });
  }
}

TEST(ContextAttention, GradientsOfSomeInputsAndWithoutAny) {
  const std::vector<int64_t> lengths{13};
  const Batch batch = batch_of(lengths, {4, 2});
  const Expected expected = expected_of(batch);
  for (const ContextWay way : kWays) {
    testing::run_threads(2, [&](Communicator& comm) {
      const at::Tensor own = rows_of(lengths, comm);
      const auto mine = [&](const at::Tensor& x) { return x.index_select(0, own); };
      const at::Tensor k = mine(batch.k).requires_grad_();
      const at::Tensor mixed = attention(way, comm, mine(batch.q), k, mine(batch.v), lengths);
      // Twice, of one graph.
      mixed.backward(mine(batch.dmixed), /*retain_graph=*/true);
      mixed.backward(mine(batch.dmixed));
      EXPECT_LT(difference(k.grad(), 2 * mine(expected.dk)), 1e-12);
      EXPECT_FALSE(attention(way, comm, mine(batch.q), mine(batch.k), mine(batch.v), lengths)
                       .requires_grad());
    });
  }
}

TEST(ContextAttention, MessagesOfOtherLengthsAreAMismatch) {
  EXPECT_THAT(message_of<Mismatch>([&] {
                testing::run_threads(2, [&](Communicator& comm) {
                  const std::vector<int64_t> lengths{comm.rank() == 0 ? 16 : 20};
                  const int64_t rows = context_count(lengths, comm.rank(), 2);
                  const at::Tensor x = torch::ones({rows, 4, kWidth});
                  ring_attention(comm, x, x, x, lengths);
                });
              }),
              HasSubstr("context_attention_test.cpp"));
}

TEST(ContextAttention, BadInputIsOneLineAndNothingIsSent) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto line = [&](const auto& call) {
      const std::string text = message_of<InvalidArgument>(call);
      EXPECT_EQ(text.find('\n'), std::string::npos);
      return text;
    };
    const at::Tensor x = torch::ones({4, 4, 6});
    EXPECT_THAT(line([&] { ring_attention(comm, x, x, x, {10}); }),
                HasSubstr("ring_attention: give queries, keys and values [5 rows of this rank"));
    EXPECT_THAT(line([&] { ring_attention(comm, x, x.to(at::kDouble), x, {8}); }),
                HasSubstr("of one type"));
    EXPECT_THAT(line([&] { ring_attention(comm, x, x, x.narrow(1, 0, 2), {8}); }),
                HasSubstr("of one type"));
    EXPECT_THAT(
        line([&] { ring_attention(comm, x.to(at::kLong), x.to(at::kLong), x.to(at::kLong), {8}); }),
        HasSubstr("not int64"));
    const at::Tensor three = x.narrow(1, 0, 3);
    EXPECT_THAT(line([&] { ring_attention(comm, x, three, three, {8}); }),
                HasSubstr("4 heads of queries do not share 3 of keys evenly"));
    EXPECT_THAT(line([&] { heads_attention(comm, three, three, three, {8}); }),
                HasSubstr("3 heads do not divide among 2 ranks; take the way kRing"));
    EXPECT_EQ(comm.stats().collectives, 0u);
    EXPECT_EQ(comm.stats().of(Op::kSend).calls, 0u);

    const at::Tensor q = torch::ones({4, 4, 6}).requires_grad_();
    for (const ContextWay way : kWays) {
      const at::Tensor mixed = attention(way, comm, q, q, q, {8});
      EXPECT_THAT(
          line([&] { torch::autograd::grad({mixed.sum()}, {q}, {}, true, /*create_graph=*/true); }),
          HasSubstr("without create_graph"));
    }
  });
}

}  // namespace
}  // namespace lockstep::inline v0::context_attention_test
