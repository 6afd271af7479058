#include "lockstep/model/attention.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "lockstep/kernels/dropout.h"
#include "lockstep/model/internal/heads.h"
#include "lockstep/model/internal/undrawn.h"

namespace lockstep::inline v0 {
namespace {

struct Case {
  AttentionLayout layout;
  int64_t queries, keys, heads, width;
};

// Sequences of these many queries and keys, some rows of keys between them that nobody looks at.
Case case_of(std::vector<std::pair<int64_t, int64_t>> sequences, int64_t heads, int64_t width,
             int64_t padding, bool bias) {
  Case c{{}, 0, 0, heads, width};
  int64_t most = 0;
  for (const auto& [queries, keys] : sequences) {
    c.layout.spans.push_back({c.queries, queries, c.keys, keys});
    c.queries += queries;
    c.keys += keys + padding;
    most = std::max(most, keys);
  }
  if (bias) c.layout.bias = torch::randn({static_cast<int64_t>(sequences.size()), most});
  return c;
}

std::vector<Case> cases() {
  return {case_of({{5, 5}, {1, 1}, {17, 17}}, 3, 8, 0, false),
          case_of({{16, 32}, {48, 16}}, 2, 16, 4, true),
          case_of({{1, 40}, {1, 7}}, 2, 10, 3, false), case_of({{300, 150}}, 1, 64, 2, true),
          case_of({{128, 128}, {128, 100}}, 2, 64, 28, false)};
}

// softmax(q k^T / sqrt(width) + bias) weights v, the plainest way.
at::Tensor plain(const Case& c, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const at::Tensor& kept) {
  std::vector<at::Tensor> rows;
  for (size_t s = 0; s < c.layout.spans.size(); ++s) {
    const AttentionSpan& span = c.layout.spans[s];
    std::vector<at::Tensor> columns;
    for (int64_t h = 0; h < c.heads; ++h) {
      const auto part = [&](const at::Tensor& x, int64_t begin, int64_t count) {
        return x.narrow(0, begin, count).narrow(1, h * c.width, c.width);
      };
      at::Tensor scores =
          part(q, span.query_begin, span.queries).mm(part(k, span.key_begin, span.keys).t()) /
          std::sqrt(static_cast<double>(c.width));
      if (c.layout.bias.defined())
        scores = scores + c.layout.bias[static_cast<int64_t>(s)].narrow(0, 0, span.keys);
      at::Tensor weights = scores.softmax(1);
      if (kept.defined())
        weights =
            weights * kept[h].narrow(0, span.query_begin, span.queries).narrow(1, 0, span.keys);
      columns.push_back(weights.mm(part(v, span.key_begin, span.keys)));
    }
    rows.push_back(torch::cat(columns, 1));
  }
  return torch::cat(rows);
}

struct Results {
  at::Tensor mixed, dq, dk, dv;
};

Results by_autograd(const Case& c, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& dmixed, const at::Tensor& kept) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : {q, k, v})
    leaves.push_back(x.to(at::kDouble).detach().requires_grad_(true));
  const at::Tensor mixed = plain(c, leaves[0], leaves[1], leaves[2], kept);
  mixed.backward(dmixed.to(at::kDouble));
  return {mixed.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                  const char* what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const double most = expected.abs().max().item<double>();
  EXPECT_LE((actual.to(at::kDouble) - expected).abs().max().item<double>(),
            tolerance * std::max(1.0, most))
      << what;
}

TEST(Attention, IsThatOfDoublePrecision) {
  torch::manual_seed(1);
  for (const Case& c : cases()) {
    std::vector<at::Tensor> x;
    for (const int64_t rows : {c.queries, c.keys, c.keys})
      x.push_back(torch::randn({rows, c.heads * c.width}).requires_grad_(true));
    const at::Tensor dmixed = torch::randn({c.queries, c.heads * c.width});
    const at::Tensor mixed = attention(x[0], x[1], x[2], c.layout, {.heads = c.heads});
    mixed.backward(dmixed);
    const Results expected = by_autograd(c, x[0], x[1], x[2], dmixed, {});
    expect_close(mixed, expected.mixed, 1e-5, "mixed");
    expect_close(x[0].grad(), expected.dq, 1e-5, "queries");
    expect_close(x[1].grad(), expected.dk, 1e-5, "keys");
    expect_close(x[2].grad(), expected.dv, 1e-5, "values");
  }
}

// The mask of a head, [heads, queries, most keys].
at::Tensor kept_of(const Case& c, const kernels::Dropout& dropout) {
  int64_t most = 0;
  for (const AttentionSpan& span : c.layout.spans) most = std::max(most, span.keys);
  const at::Tensor kept = torch::zeros({c.heads, c.queries, most}, at::kDouble);
  auto access = kept.accessor<double, 3>();
  for (int64_t h = 0; h < c.heads; ++h)
    for (int64_t q = 0; q < c.queries; ++q)
      for (int64_t k = 0; k < most; ++k)
        access[h][q][k] = kernels::is_kept(dropout, h * c.queries + q, k) ? dropout.scale : 0;
  return kept;
}

// Without a mask one is drawn, as on other devices; a mask that is given draws nothing.
TEST(Attention, DropsWithAMaskAndWithout) {
  constexpr double kDropped = 0.25;
  for (const Case& c : cases()) {
    std::vector<at::Tensor> x;
    for (const int64_t rows : {c.queries, c.keys, c.keys})
      x.push_back(torch::randn({rows, c.heads * c.width}).requires_grad_(true));
    const at::Tensor dmixed = torch::randn({c.queries, c.heads * c.width});
    torch::manual_seed(4);
    const kernels::Dropout drawn = kernels::make_dropout(internal::draw_seeds(1)[0], kDropped);
    for (const kernels::Dropout& mask : {kernels::Dropout{}, kernels::make_dropout(9, kDropped)}) {
      const bool is_given = mask.threshold > 0;
      for (at::Tensor& one : x) one.mutable_grad() = at::Tensor();
      torch::manual_seed(4);
      const at::Tensor mixed = attention(x[0], x[1], x[2], c.layout,
                                         {.heads = c.heads, .dropout = kDropped, .mask = mask});
      EXPECT_EQ(kernels::make_dropout(internal::draw_seeds(1)[0], kDropped).seed == drawn.seed,
                is_given);
      mixed.backward(dmixed);
      const Results expected =
          by_autograd(c, x[0], x[1], x[2], dmixed, kept_of(c, is_given ? mask : drawn));
      expect_close(mixed, expected.mixed, 1e-5, "mixed");
      expect_close(x[0].grad(), expected.dq, 1e-5, "queries");
      expect_close(x[1].grad(), expected.dk, 1e-5, "keys");
      expect_close(x[2].grad(), expected.dv, 1e-5, "values");
    }
  }
}

void compare_heads(const Case& c, at::ScalarType type, double tolerance) {
  const bool is_short = type == at::kBFloat16;
  const int64_t width = c.heads * c.width;
  const auto make = [&](int64_t rows) { return torch::randn({rows, width}).to(type); };
  // Keys and values side by side, as one product makes them.
  const at::Tensor q = make(c.queries), dmixed = make(c.queries);
  const at::Tensor kv = torch::randn({c.keys, 2 * width}).to(type);
  const at::Tensor k = kv.narrow(1, 0, width), v = kv.narrow(1, width, width);
  for (const double p : {0.0, 0.25}) {
    const internal::Heads heads{q, k, v, &c.layout, c.heads, kernels::make_dropout(9, p)};
    const at::Tensor mixed = torch::empty_like(q),
                     statistics = torch::empty({2, c.heads, c.queries});
    internal::heads_forward(heads, mixed, statistics);
    const at::Tensor dq = torch::full_like(q, 7), dkv = torch::full_like(kv, 7);
    const auto turned = [&](const at::Tensor& x) {
      return is_short ? torch::full({x.size(1), x.size(0)}, 7, type) : at::Tensor();
    };
    const at::Tensor dq_turned = turned(dq), dkv_turned = turned(dkv);
    const auto rows_of = [&](int64_t i) {
      return is_short ? dkv_turned.narrow(0, i * width, width) : at::Tensor();
    };
    internal::heads_backward(heads, statistics, dmixed,
                             {dq, dkv.narrow(1, 0, width), dkv.narrow(1, width, width), dq_turned,
                              rows_of(0), rows_of(1)});
    const Results expected =
        by_autograd(c, q, k, v, dmixed, p > 0 ? kept_of(c, heads.dropout) : at::Tensor());
    expect_close(mixed, expected.mixed, tolerance, "mixed");
    expect_close(dq, expected.dq, tolerance, "queries");
    expect_close(dkv.narrow(1, 0, width), expected.dk, tolerance, "keys");
    expect_close(dkv.narrow(1, width, width), expected.dv, tolerance, "values");
    if (is_short) {
      EXPECT_TRUE(dq_turned.equal(dq.t()));
      EXPECT_TRUE(dkv_turned.equal(dkv.t()));
    }
  }
}

TEST(Heads, AreThoseOfDoublePrecision) {
  torch::manual_seed(2);
  for (const Case& c : cases()) compare_heads(c, at::kFloat, 1e-5);
}

TEST(Heads, InBfloat16) {
  if (!internal::has_heads(at::kBFloat16))
    GTEST_SKIP() << "libtorch has no products of bfloat16 for this processor";
  torch::manual_seed(3);
  for (const Case& c : cases()) compare_heads(c, at::kBFloat16, 2e-2);
}

}  // namespace
}  // namespace lockstep::inline v0
