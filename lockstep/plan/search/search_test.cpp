// The search: against all layouts, its bounds, what it refuses, and how long it takes.
#include "lockstep/plan/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/plan/search/bounds.h"
#include "lockstep/plan/search/enumerate.h"

namespace lockstep::inline v0::plan {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr double kGiB = 1024.0 * 1024 * 1024;

SearchRequest request_of(int ranks, int64_t global_batch, int64_t sequence = 2048) {
  SearchRequest request{.ranks = ranks};
  request.job.global_batch = global_batch;
  request.job.sequence = sequence;
  return request;
}

// Every layout of a request, one after the other.
template <typename Visit>
void for_each_layout(const ModelShape& model, const SearchRequest& request, const Machine& machine,
                     const Visit& visit) {
  for (const MeshOptions& options : meshes_of(model, request, machine)) {
    for (const int64_t size : options.micro_batches) {
      for (const bool rows : options.divides_rows) {
        for (const Scheduled& scheduled : options.schedules) {
          for (const Sharded& sharded : options.shards) {
            for (const Activations policy : policies_of(request)) {
              Layout layout = options.mesh;
              layout.micro_batch = size;
              layout.divides_rows = rows;
              layout.schedule = scheduled.name;
              layout.chunks = scheduled.chunks;
              layout.zero = sharded.zero;
              layout.shard_ranks = sharded.ranks;
              layout.activations = policy;
              if (allowed(layout, model)) visit(layout);
            }
          }
        }
      }
    }
  }
}

TEST(Search, Divisors) {
  EXPECT_THAT(divisors_of(1), ElementsAre(1));
  EXPECT_THAT(divisors_of(12), ElementsAre(1, 2, 3, 4, 6, 12));
  EXPECT_THAT(divisors_of(49), ElementsAre(1, 7, 49));
}

void expect_bounds_below(const Machine& machine) {
  for (const char* stack : {"lockstep", "megatron-2021"}) {
    for (const char* name : {"llama3-8b", "mixtral-8x7b", "gpt2"}) {
      const ModelShape model = known_model(name);
      SearchRequest request = request_of(16, 32, 1024);
      int64_t looked_at = 0;
      for_each_layout(model, request, machine, [&](const Layout& layout) {
        if (layout.zero == 1 || layout.zero == 2) return;
        ++looked_at;
        const double step = estimate(model, layout, machine, known_stack(stack)).step;
        const MicroBatchWork work = work_of(model, layout, machine, known_stack(stack));
        ASSERT_LE(least_step(layout, work), step * (1 + 1e-9)) << name << ": " << to_string(layout);
        ASSERT_LE(least_step(model, layout, machine, known_stack(stack)), step * (1 + 1e-9))
            << name << ": " << to_string(layout);
      });
      EXPECT_GT(looked_at, 500) << name;
    }
  }
}

TEST(Search, NoStepIsBelowItsBounds) {
  expect_bounds_below(known_machine("h100"));
}

TEST(Search, NoStepIsBelowItsBoundsWhereRanksShareProcessors) {
  Machine machine = known_machine("xeon-8480");
  machine.host = true;
  machine.ranks_per_host = 4;
  for (machine.processors = 1; machine.processors < 4; ++machine.processors)
    expect_bounds_below(machine);
}

// What a search finds, found by computing everything.
std::map<std::string, double> best_of_all(const ModelShape& model, const SearchRequest& request,
                                          const Machine& machine, const Stack& stack) {
  std::map<std::string, double> best;
  for_each_layout(model, request, machine, [&](const Layout& layout) {
    const Estimate found = estimate(model, layout, machine, stack);
    if (!found.fits()) return;
    Layout key = layout;  // what the kinds of a mesh and a ZeRO stage have in common
    key.micro_batch = 1;
    key.schedule = "1f1b";
    key.chunks = 1;
    key.activations = Activations::kKept;
    key.divides_rows = false;
    const auto [at, fresh] = best.try_emplace(to_string(key), found.step);
    if (!fresh) at->second = std::min(at->second, found.step);
  });
  return best;
}

TEST(Search, FindsWhatComputingAllLayoutsFinds) {
  Machine machine = known_machine("h100");
  const Stack& stack = known_stack("lockstep");
  for (const double memory : {20.0, 79.0}) {
    machine.memory = memory * kGiB;
    for (const char* name : {"llama3-8b", "mixtral-8x7b"}) {
      const ModelShape model = known_model(name);
      const SearchRequest request = request_of(16, 64);
      const auto all = best_of_all(model, request, machine, stack);
      std::vector<double> steps;
      for (const auto& [key, step] : all) steps.push_back(step);
      std::sort(steps.begin(), steps.end());
      const SearchResult found = search(model, request, machine, stack);
      ASSERT_EQ(found.best.size(), std::min(request.top, steps.size())) << name << memory;
      for (size_t i = 0; i < found.best.size(); ++i)
        EXPECT_DOUBLE_EQ(found.best[i].estimate.step, steps[i])
            << name << " " << memory << " " << to_string(found.best[i].layout);
      EXPECT_LT(found.timed * 4, found.layouts) << "most were left out by their bounds";
    }
  }
}

TEST(Search, TheBestIsFirstAndTheOthersSayWhyTheyLose) {
  const ModelShape model = known_model("llama3-8b");
  const SearchResult found =
      search(model, request_of(64, 512, 4096), known_machine("h100"), known_stack("lockstep"));
  ASSERT_EQ(found.best.size(), 10u);
  EXPECT_EQ(found.best.front().loses, "");
  for (size_t i = 1; i < found.best.size(); ++i) {
    const Candidate& one = found.best[i];
    EXPECT_GE(one.estimate.step, found.best[i - 1].estimate.step);
    EXPECT_LE(one.estimate.memory.of_worst().total(), known_machine("h100").memory);
    EXPECT_EQ(one.layout.ranks(), 64);
    EXPECT_THAT(one.loses,
                testing::AnyOf("as fast", MatchesRegex("as fast, and takes [0-9.]+ [GM]iB more"),
                               MatchesRegex("[a-z' -]+ \\+?[0-9.]+ %")));
  }
  for (const Candidate& one : found.too_large) {
    EXPECT_LT(one.estimate.step, found.best.front().estimate.step);
    EXPECT_THAT(one.loses, MatchesRegex("stage [0-9]+ does not fit by [0-9.]+ [GM]iB"));
  }
}

TEST(Search, WhereNothingFitsItNamesWhatLacksLeast) {
  Machine small = known_machine("a100-40");
  small.memory = 2 * kGiB;
  const SearchResult found =
      search(known_model("llama3-70b"), request_of(8, 8), small, known_stack("lockstep"));
  EXPECT_TRUE(found.best.empty());
  ASSERT_FALSE(found.too_large.empty());
  EXPECT_THAT(found.too_large.front().loses, HasSubstr("does not fit by"));
  for (size_t i = 1; i < found.too_large.size(); ++i)
    EXPECT_LE(found.too_large[i].estimate.spare_bytes, found.too_large[i - 1].estimate.spare_bytes);
}

TEST(Search, NoLayoutIsARefusedProduct) {
  const ModelShape tied = known_model("gpt2");
  ASSERT_TRUE(tied.tied);
  int64_t piped = 0;
  for_each_layout(tied, request_of(12, 24, 1024), known_machine("h100"), [&](const Layout& layout) {
    piped += layout.pipe > 1 ? 1 : 0;
    EXPECT_FALSE(layout.pipe > 1 && layout.zero > 1) << to_string(layout);
  });
  EXPECT_GT(piped, 100);
  Layout layout{.pipe = 2, .zero = 2};
  EXPECT_THAT(refusal_of(layout, tied), HasSubstr("zero 2 and tied embeddings do not go together"));
  layout.zero = 1;
  EXPECT_EQ(refusal_of(layout, tied), "");
}

TEST(Search, WhatIsSetIsFixed) {
  SearchRequest request = request_of(16, 64);
  request.zero = 1;
  request.micro_batch = 2;
  request.activations = Activations::kRecomputed;
  request.schedule = "interleaved";
  request.divides_rows = true;
  const SearchResult found =
      search(known_model("llama3-8b"), request, known_machine("h100"), known_stack("lockstep"));
  ASSERT_FALSE(found.best.empty());
  for (const Candidate& one : found.best) {
    EXPECT_THAT(one.layout.zero, testing::AnyOf(0, 1)) << "0 where nothing averages";
    EXPECT_EQ(one.layout.micro_batch, 2);
    EXPECT_EQ(one.layout.activations, Activations::kRecomputed);
    if (one.layout.pipe > 1) {
      EXPECT_EQ(one.layout.schedule, "interleaved");
    }
    EXPECT_TRUE(one.layout.divides_rows || one.layout.tensor == 1);
  }
}

// Bounds: the whole search, on a machine that does other things, too.
TEST(Search, AHundredThousandRanksTakeSeconds) {
  const auto begin = std::chrono::steady_clock::now();
  const SearchResult found = search(known_model("llama3-405b"), request_of(98304, 12288, 8192),
                                    known_machine("h100"), known_stack("lockstep"));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%lld layouts on 98304 ranks: %.2f s, memory of %lld, time of %lld\n",
              static_cast<long long>(found.layouts), seconds, static_cast<long long>(found.weighed),
              static_cast<long long>(found.timed));
  EXPECT_EQ(found.best.size(), 10u);
  EXPECT_LT(seconds, 60);
}

TEST(Search, TheReasonIsTheLargestExcess) {
  Estimate best, other;
  best.step = 10;
  best.time.matrices = 9;
  best.time.bubble = 1;
  other = best;
  other.time.parameters = 2;
  other.time.bubble = 2;
  other.step = 13;
  EXPECT_EQ(why_slower(best, other), "exposed all-gather of parameters 15 %");
  other.time.bubble = 5;
  other.step = 16;
  EXPECT_EQ(why_slower(best, other), "bubble 31 %") << "most of it is the other's own";
  best.time.bubble = 4;
  best.step = 13;
  EXPECT_EQ(why_slower(best, other), "exposed all-gather of parameters 12 %");
  EXPECT_EQ(why_slower(other, other), "as fast");
  best.spare_bytes = 9 * kGiB;
  other.step = best.step;
  EXPECT_EQ(why_slower(best, other), "as fast, and takes 9.0 GiB more");
  other.spare_bytes = -3.14 * kGiB;
  other.memory.stages.resize(3);
  other.memory.worst = 2;
  EXPECT_EQ(why_slower(best, other), "stage 2 does not fit by 3.1 GiB");
  other.spare_bytes = -300.0 * 1024 * 1024;
  EXPECT_EQ(lack_of(other), "stage 2 does not fit by 300 MiB");
}

TEST(Search, MistakesAreOneLine) {
  const auto refusal = [](int ranks, int64_t batch) {
    return message_of<InvalidArgument>([&] {
      search(known_model("llama3-8b"), request_of(ranks, batch), known_machine("h100"),
             known_stack("lockstep"));
    });
  };
  EXPECT_THAT(refusal(509, 4),
              HasSubstr("no layout divides model llama3-8b and 4 sequences of 2048 "
                        "tokens among 509 ranks; give ranks or"));
  EXPECT_THAT(refusal(0, 4), HasSubstr("0 ranks; give 1 or more"));
}

// What Lockstep trains is cut as its pipelines cut it, and the bounds hold for that, too.
TEST(Search, AsTrainedAModelIsCutWithItsHead) {
  ModelShape model = known_model("gpt2");
  model.tied = false;
  SearchRequest request = request_of(4, 16, 512);
  request.as_trained = true;
  request.top = 100;
  Stack stack = known_stack("lockstep");
  stack.measured = {{StepPart::kLayer, {}, 0.5, 0.5}};
  const Machine& machine = known_machine("xeon-8480");
  int piped = 0;
  double least = std::numeric_limits<double>::infinity();
  const SearchResult found = search(model, request, machine, stack);
  for (const Candidate& one : found.best) {
    least = std::min(least, one.estimate.step);
    if (one.layout.pipe == 1) continue;
    ++piped;
    EXPECT_EQ(one.layout.cut, lockstep_cut(model, one.layout.pipe * one.layout.chunks))
        << to_string(one.layout);
  }
  EXPECT_GT(piped, 2);
  request.top = 1;
  EXPECT_EQ(search(model, request, machine, stack).best.front().estimate.step, least);
}

}  // namespace
}  // namespace lockstep::inline v0::plan
