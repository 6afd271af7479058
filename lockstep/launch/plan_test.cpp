// The pure decisions of a launch: processors, environment, and reports of failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>
#include <optional>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/launch/error_note.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/launch/line_prefix.h"
#include "lockstep/launch/placement.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::inline v0::launch {
namespace plan_test {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Placement, ContiguousEvenShares) {
  const std::vector<int> cpus = {0, 1, 2, 5, 6, 7, 8};
  EXPECT_THAT(cpu_share(cpus, 3, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(cpu_share(cpus, 3, 1), ElementsAre(5, 6));
  EXPECT_THAT(cpu_share(cpus, 3, 2), ElementsAre(7, 8));
  EXPECT_THAT(cpu_share(cpus, 7, 6), ElementsAre(8));
}

TEST(Placement, NoPinningForOneRankOrTooManyRanks) {
  EXPECT_THAT(cpu_share({0, 1}, 1, 0), IsEmpty());
  EXPECT_THAT(cpu_share({0, 1}, 3, 0), IsEmpty());
}

TEST(Placement, EveryProcessorHasOneRank) {
  std::vector<int> cpus(13);
  for (int i = 0; i < 13; ++i) cpus[static_cast<size_t>(i)] = 3 * i;
  for (int ranks = 2; ranks <= 13; ++ranks) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) {
      for (const int cpu : cpu_share(cpus, ranks, rank)) all.push_back(cpu);
    }
    EXPECT_EQ(all, cpus) << ranks;
  }
}

TEST(Placement, Threads) {
  EXPECT_EQ(threads_per_rank(8, 3), 2);
  EXPECT_EQ(threads_per_rank(2, 4), 1);
  EXPECT_EQ(threads_per_rank(0, 0), 1);
}

EnvLookup lookup(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(std::string(name));
    return it == variables.end() || it->second.empty() ? std::nullopt : std::optional(it->second);
  };
}

AttemptPlan two_ranks() {
  AttemptPlan plan;
  plan.node.local_ranks = plan.node.world_size = 2;
  plan.run_id = "none";
  plan.role = "default";
  plan.node.master = {"127.0.0.1", 29500};
  plan.node.store = {"127.0.0.1", 4000};
  plan.secret_fd = 5;
  plan.board_fd = 6;
  plan.default_threads = 4;
  return plan;
}

TEST(RankEnvironment, IsWhatJobEnvironmentReads) {
  AttemptPlan plan = two_ranks();
  plan.restart_count = 3;
  const JobEnvironment job =
      read_job_environment(lookup(rank_variables(plan, 1, "/e", lookup({}))));
  EXPECT_EQ(job.launcher, Launcher::kLockstep);
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.world_size, 2);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_world_size, 2);
  EXPECT_EQ(job.node_rank, 0);
  EXPECT_EQ(job.restart_count, 3);
  EXPECT_EQ(job.store->port, 4000);
  EXPECT_EQ(job.master->port, 29500);
}

TEST(RankEnvironment, OnSeveralHosts) {
  AttemptPlan plan = two_ranks();
  plan.node.node_rank = 1;
  plan.node.nodes = 3;
  plan.node.first_rank = 4;
  plan.node.world_size = 9;
  plan.node.interface = "eth0";
  const Variables variables = rank_variables(plan, 1, "", lookup({}));
  const JobEnvironment job = read_job_environment(lookup(variables));
  EXPECT_EQ(job.rank, 5);
  EXPECT_EQ(job.world_size, 9);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_world_size, 2);
  EXPECT_EQ(job.node_rank, 1);
  EXPECT_EQ(variables.at("GROUP_WORLD_SIZE"), "3");
  EXPECT_EQ(variables.at("ROLE_RANK"), "5");
  EXPECT_EQ(variables.at("ROLE_WORLD_SIZE"), "9");
  EXPECT_EQ(variables.at("LOCKSTEP_INTERFACE"), "eth0");
  EXPECT_EQ(variables.at("GLOO_SOCKET_IFNAME"), "eth0");
  const auto users = lookup({{"GLOO_SOCKET_IFNAME", "ib0"}});
  EXPECT_FALSE(rank_variables(plan, 1, "", users).contains("GLOO_SOCKET_IFNAME"));
  plan.interface_chosen = true;
  EXPECT_EQ(rank_variables(plan, 1, "", users).at("GLOO_SOCKET_IFNAME"), "eth0");
  EXPECT_EQ(rank_variables(plan, 1, "", users).at("NCCL_SOCKET_IFNAME"), "eth0");
}

TEST(RankEnvironment, ThreadsComeFromTheUserFirst) {
  AttemptPlan plan = two_ranks();
  EXPECT_EQ(rank_variables(plan, 0, "", lookup({})).at("OMP_NUM_THREADS"), "4");
  EXPECT_FALSE(
      rank_variables(plan, 0, "", lookup({{"OMP_NUM_THREADS", "7"}})).contains("OMP_NUM_THREADS"));
  plan.threads = 2;
  EXPECT_EQ(rank_variables(plan, 0, "", lookup({{"OMP_NUM_THREADS", "7"}})).at("OMP_NUM_THREADS"),
            "2");
}

TEST(RankEnvironment, FreedMemoryIsKeptUnlessTheUserSaysOtherwise) {
  const AttemptPlan plan = two_ranks();
  EXPECT_EQ(rank_variables(plan, 0, "", lookup({})).at("MALLOC_TRIM_THRESHOLD_"), "1073741824");
  EXPECT_EQ(rank_variables(plan, 0, "", lookup({})).at("MALLOC_MMAP_THRESHOLD_"), "33554432");
  EXPECT_FALSE(rank_variables(plan, 0, "", lookup({{"MALLOC_TRIM_THRESHOLD_", "1"}}))
                   .contains("MALLOC_TRIM_THRESHOLD_"));
}

TEST(RankEnvironment, OnlyRankZeroHearsOfTheTerminal) {
  AttemptPlan plan = two_ranks();
  EXPECT_EQ(rank_variables(plan, 0, "", lookup({})).at("LOCKSTEP_TTY"), "") << "removed";
  plan.terminal_columns = 120;
  EXPECT_EQ(rank_variables(plan, 0, "", lookup({})).at("LOCKSTEP_TTY"), "1");
  EXPECT_EQ(rank_variables(plan, 0, "", lookup({})).at("LOCKSTEP_COLUMNS"), "120");
  EXPECT_EQ(rank_variables(plan, 1, "", lookup({})).at("LOCKSTEP_TTY"), "");
}

TEST(RankEnvironment, MergeReplacesAndRemoves) {
  EXPECT_THAT(
      merge_environment({"A=1", "AB=2", "C=3", "D=x=y"}, {{"A", "9"}, {"C", ""}, {"E", "5"}}),
      ElementsAre("AB=2", "D=x=y", "A=9", "E=5"));
}

TEST(FailureReport, SaysAllThatIsKnown) {
  WorkerFailure failure;
  failure.rank = failure.local_rank = 1;
  failure.pid = 42;
  failure.signal = SIGSEGV;
  trace::BoardRecord record;
  record.pid = 42;
  record.sequence = 17;
  record.state = 2;
  record.call = "barrier at train.cpp:9";
  failure.last_collective = describe_call(record);
  failure.message = "ValueError: boom\nsecond line";
  failure.tail = {"one", "two"};
  EXPECT_EQ(format_failure(failure, 4),
            "[lockstep] rank 1 of 4 failed first: killed by SIGSEGV, pid 42\n"
            "  last collective: #17 barrier at train.cpp:9 (had returned)\n"
            "  error: ValueError: boom\n"
            "    second line\n"
            "  last lines of its stderr:\n"
            "    one\n"
            "    two\n");
}

TEST(FailureReport, IsShortWhenLittleIsKnown) {
  WorkerFailure failure;
  failure.pid = 7;
  failure.exit_code = 3;
  EXPECT_EQ(format_failure(failure, 1),
            "[lockstep] rank 0 of 1 failed first: exited with code 3, pid 7\n");
  failure.host = "hostB";
  EXPECT_THAT(format_failure(failure, 1), testing::StartsWith("[lockstep] rank 0 of 1 on hostB "));
  trace::BoardRecord record;
  EXPECT_EQ(describe_call(record), "");
  record.pid = 7;
  failure.last_collective = describe_call(record);
  EXPECT_THAT(format_failure(failure, 1), testing::HasSubstr("last collective: none yet\n"));
}

// Rank 0 only waited, for rank 1.
WorkerFailure waited_for_rank_1() {
  WorkerFailure failure;
  failure.pid = 41;
  failure.exit_code = 1;
  failure.last_collective = "#8 barrier (still inside)";
  failure.message = "#8 barrier waited 10 s";
  failure.tail = {"one"};
  failure.gave_up = true;
  failure.late = 1;
  failure.waited = {0, 2};
  return failure;
}

TEST(FailureReport, NamesTheCauseAndThenWhoOnlyWaited) {
  WorkerFailure failure = waited_for_rank_1();
  trace::BoardRecord record;
  record.pid = 42;
  record.step = "connecting to the others over gloo";
  failure.causes = {
      {.rank = 1, .pid = 42, .stopped_by = "SIGSTOP", .last_collective = describe_call(record)}};
  EXPECT_EQ(format_failure(failure, 3),
            "[lockstep] rank 1 of 3 is stopped (SIGSTOP), pid 42; ranks 0, 2 gave up waiting\n"
            "  last collective: none yet; it is in init(): connecting to the others over gloo\n"
            "  rank 0 gave up first: exited with code 1, pid 41\n"
            "  last collective of rank 0: #8 barrier (still inside)\n"
            "  error: #8 barrier waited 10 s\n"
            "  last lines of rank 0's stderr:\n"
            "    one\n");
  EXPECT_EQ(describe_cause(failure), "rank 1 is stopped (SIGSTOP)");
}

TEST(FailureReport, SaysHowTheCauseEndedOrThatItRuns) {
  WorkerFailure failure = waited_for_rank_1();
  failure.causes = {{.rank = 1, .pid = 42}};
  EXPECT_THAT(format_failure(failure, 3),
              testing::StartsWith("[lockstep] rank 1 of 3 did not come; its process runs, pid 42; "
                                  "ranks 0, 2 gave up waiting\n"));
  failure.causes[0].end = "exited with code 0";
  failure.causes[0].host = "b";
  EXPECT_THAT(format_failure(failure, 3),
              testing::StartsWith("[lockstep] rank 1 of 3 on b exited with code 0, although others "
                                  "still waited for it, pid 42; "));
}

TEST(FailureReport, WhoOnlyWaitedDidNotFailFirst) {
  WorkerFailure failure = waited_for_rank_1();
  EXPECT_THAT(format_failure(failure, 3),
              testing::StartsWith("[lockstep] rank 0 of 3 gave up waiting for others: exited"));
  EXPECT_EQ(describe_cause(failure), "rank 0 exited with code 1");
}

TEST(FailureReport, ARankThatStandsStillIsToldBesideAnotherFailure) {
  WorkerFailure failure;
  failure.exit_code = 1;
  failure.causes = {{.rank = 2, .pid = 43, .stopped_by = "SIGTTIN"}};
  EXPECT_EQ(format_failure(failure, 3),
            "[lockstep] rank 0 of 3 failed first: exited with code 1, pid 0\n"
            "  besides, rank 2 is stopped (SIGTTIN), pid 43\n");
}

TEST(FailureReport, IsTheRanksOwnLineWhereThatSaysItAll) {
  WorkerFailure failure;
  failure.exit_code = 1;
  failure.message = "train: cannot write x: No space left on device";
  failure.complete = true;
  failure.tail = {"epoch 1"};
  EXPECT_EQ(format_failure(failure, 2), failure.message + "\n");
}

TEST(LinePrefix, FillsTorchrunsTemplate) {
  const RankNames names{.role = "trainer", .rank = 5, .local_rank = 1};
  EXPECT_EQ(filled_template("[${role_name}${local_rank}/${rank}]: ", names), "[trainer1/5]: ");
  EXPECT_EQ(filled_template("$rank $$rank ${pid} ${rank $ranks 5$", names),
            "5 $rank ${pid} ${rank $ranks 5$");
  LaunchOptions options;
  EXPECT_EQ(line_prefix(options, names, false), "");
  options.prefix = LinePrefix::kRankAndStream;
  EXPECT_EQ(line_prefix(options, names, true), "[5]<stderr>: ");
  options.prefix_template = "${rank}|";
  EXPECT_EQ(line_prefix(options, names, true), "5|") << "the template wins";
}

std::string message_in(std::string_view text) {
  return error_note_of(text).message;
}

TEST(ErrorNote, IsReadAsItWasLeft) {
  const TestDirectory dir;
  const std::string path = dir / "error.json";
  const auto env = [&](bool agent) {
    return [=](std::string_view name) -> std::optional<std::string> {
      if (name == "TORCHELASTIC_ERROR_FILE") return path;
      return agent && name == "LOCKSTEP_STORE" ? std::optional<std::string>("a:1") : std::nullopt;
    };
  };
  EXPECT_FALSE(leave_error_note({.message = "x"}, env(false))) << "torchrun's file";
  ASSERT_TRUE(
      leave_error_note({.message = "a\nb", .complete = true, .device = "cuda:1"}, env(true)));
  const ErrorNote note = error_note_of(dir.read("error.json"));
  EXPECT_EQ(note.message, "a\nb");
  EXPECT_TRUE(note.complete);
  EXPECT_FALSE(note.consequence);
  EXPECT_EQ(note.device, "cuda:1");
}

TEST(ErrorNote, FilesOfOthers) {
  EXPECT_EQ(message_in(R"({"message": {"message": "E: x", "extraInfo": {"timestamp": "1"}}})"),
            "E: x");
  EXPECT_EQ(message_in(R"({"message": "plain"})"), "plain");
  EXPECT_EQ(message_in("not json\n"), "not json");
  EXPECT_EQ(message_in(""), "");
  EXPECT_EQ(message_in(R"({"message": 5})"), R"({"message": 5})");
  EXPECT_LT(message_in(std::string(100000, 'x')).size(), 3000u);
}

TEST(FailureReport, SignalNames) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(63), "signal 63");
}

}  // namespace plan_test
}  // namespace lockstep::inline v0::launch
