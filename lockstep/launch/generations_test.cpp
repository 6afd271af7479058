// Generations on a virtual clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "lockstep/core/env.h"
#include "lockstep/launch/generations_world_test.h"

namespace lockstep::inline v0::launch {
namespace generations_test {

using namespace generations_world;  // NOLINT: a test's own helpers

bool long_tests() {
  return env_flag(process_env(), "LOCKSTEP_LONG_TESTS", false);
}

TEST(Generations, OneFormsAndTheJobIsDoneWhenNothingGoesWrong) {
  World world({.hosts = 4, .min = 4}, {}, 1);
  EXPECT_EQ(world.run(seconds(100)), "");
  EXPECT_EQ(world.generations(), 1);
  EXPECT_EQ(world.done(), 4);
  EXPECT_LT(world.met(), milliseconds(100));
}

// Runs random jobs with random failures. Prints what happened, and the seed of a failing schedule.
void run_schedules(Lead lead, int schedules, bool spares = false) {
  int generations = 0, done = 0, failed = 0, leaders = 0, moves = 0, left = 0;
  int64_t messages = 0;
  for (int seed = 1; seed <= schedules; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const auto any = [&](double most) {
      const double u = std::uniform_real_distribution<double>(0, 1)(random);
      return u < 0.3 ? 0 : most * u * u;
    };
    const auto from_to = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    JobOptions job;
    job.lead = lead;
    job.hosts = from_to(2, 6);
    job.min = from_to(1, job.hosts);
    if (lead == Lead::kStandby) job.endpoints = std::min(job.hosts, from_to(2, 3));
    job.on_failure = from_to(0, 5) == 0 ? OnFailure::kStop : OnFailure::kRestart;
    job.max_restarts = from_to(0, 4);
    job.work = milliseconds(from_to(100, 40'000));
    job.last_call = milliseconds(from_to(0, 8'000));
    if (spares) {
      job.spares = from_to(1, 2);
      job.hosts = std::max(job.hosts, 1 + job.spares);
      job.min = job.hosts - job.spares;
      job.on_failure = OnFailure::kReplace;
    }
    Weather weather;
    weather.loss = any(0.4);
    weather.twice = any(0.5);
    weather.slowest_ms = 1 + static_cast<int>(any(3000));
    weather.crash = any(0.03);
    weather.comes_back = 0.7;
    weather.cut = any(0.03);
    weather.rank_dies = any(spares ? 0.02 : 0.5);
    weather.leaves = any(0.01);
    weather.away = any(0.05);
    weather.until = seconds(from_to(5, 120));
    World world(job, weather, static_cast<uint64_t>(seed));
    ASSERT_EQ(world.run(seconds(700)), "") << "seed " << seed;
    generations += world.generations();
    done += world.done();
    failed += world.failed();
    leaders += world.leaders();
    moves += world.moves();
    left += world.left();
    messages += world.messages();
  }
  std::printf(
      "[ measured ] %d schedules: %d generations, %d leaders, %d moves, %d hosts left, %d "
      "agents ended well, %d with a message, %lld messages\n",
      schedules, generations, leaders, moves, left, done, failed, static_cast<long long>(messages));
  EXPECT_EQ(moves > schedules / 10, spares) << moves << " hosts were replaced";
  EXPECT_EQ(left > schedules / 100, spares) << left << " hosts gave their place up";
  EXPECT_GT(generations, schedules) << "jobs are started anew";
  EXPECT_GT(leaders, schedules);
  EXPECT_GT(done, schedules / 2) << "many get done";
  EXPECT_GT(failed, 0);
}

TEST(Generations, WhateverIsLostOneWinsIsEqualEverywhereAndEnds) {
  run_schedules(Lead::kFirst, long_tests() ? 100'000 : 1'000);
}

TEST(Generations, WhoeverIsElectedOneWinsIsEqualEverywhereAndEnds) {
  run_schedules(Lead::kElected, long_tests() ? 100'000 : 1'000);
}

TEST(Generations, WhateverIsLostSparesTakeFreePlacesOnly) {
  run_schedules(Lead::kFirst, long_tests() ? 100'000 : 1'000, /*spares=*/true);
}

TEST(Generations, WhoeverIsElectedSparesTakeFreePlacesOnly) {
  run_schedules(Lead::kElected, long_tests() ? 100'000 : 1'000, /*spares=*/true);
}

TEST(Generations, WithAStandbyOneWinsIsEqualEverywhereAndEnds) {
  run_schedules(Lead::kStandby, long_tests() ? 100'000 : 1'000);
}

TEST(Generations, AnElectedLeadersJobIsDoneWhenNothingGoesWrong) {
  World world({.lead = Lead::kElected, .hosts = 4, .min = 4}, {}, 1);
  EXPECT_EQ(world.run(seconds(100)), "");
  EXPECT_EQ(world.generations(), 1);
  EXPECT_EQ(world.leaders(), 1);
  EXPECT_EQ(world.done(), 4);
}

TEST(Generations, TenThousandAgentsMeetInSecondsWithMessagesInProportion) {
  for (const int hosts : {1000, 10'000}) {
    const auto begin = std::chrono::steady_clock::now();
    World world({.hosts = hosts, .min = hosts / 2, .work = milliseconds(500)}, {}, 1);
    ASSERT_EQ(world.run(seconds(100)), "");
    const double real =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf(
        "[ measured ] %d agents: met after %.3f s of virtual time, the whole job %.2f s of real "
        "time, %.2f messages an agent\n",
        hosts, static_cast<double>(world.met().count()) / 1000, real,
        static_cast<double>(world.messages()) / hosts);
    EXPECT_EQ(world.done(), hosts);
    EXPECT_LT(world.met(), seconds(5));
    EXPECT_LT(real, 60) << "generous: the machine may be busy";
    EXPECT_LT(world.messages(), 20 * hosts);
  }
}

}  // namespace generations_test
}  // namespace lockstep::inline v0::launch
