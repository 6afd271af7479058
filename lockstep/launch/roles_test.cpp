// Roles: how they are read, and how their ranks are handled. Pure.
#include "lockstep/launch/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>

#include "lockstep/core/errors.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/supervisor_test_support.h"

namespace lockstep::inline v0::launch {
namespace roles_test {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string refusal(const std::function<void()>& what) {
  try {
    what();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "no InvalidArgument";
}

TEST(Roles, AreReadFromOneWordEach) {
  EXPECT_EQ(parse_role("ps=2"), (Role{.name = "ps", .ranks = 2}));
  EXPECT_EQ(parse_role("ps-1.a_b=3,service,restarts=7"),
            (Role{.name = "ps-1.a_b", .ranks = 3, .restarts = 7, .service = true}));
  const std::map<std::string, std::string> wrong = {
      {"", "expected NAME=COUNT[,restarts=N][,service]"},
      {"=3", "expected NAME=COUNT"},
      {"a b=3", "expected NAME=COUNT"},
      {"ps", "expected a number of ranks, 1 or more, after ps="},
      {"ps=", "expected a number of ranks"},
      {"ps=0", "expected a number of ranks"},
      {"ps=two", "expected a number of ranks"},
      {"ps=1,restarts=-1", "restarts=-1: expected a number from 0"},
      {"ps=1,restarts", "there is no 'restarts'; restarts=N and service are possible"},
      {"ps=1,", "there is no ''"},
      {"ps=1,server", "there is no 'server'"}};
  for (const auto& [text, expected] : wrong)
    EXPECT_THAT(refusal([&] { parse_role(text); }), HasSubstr(expected)) << text;
}

TEST(Roles, ThatContradictEachOtherAreRefused) {
  const auto check = [](std::vector<Role> roles) { return refusal([&] { check_roles(roles); }); };
  EXPECT_EQ(check({}), "no InvalidArgument");
  EXPECT_EQ(check({{.name = "ps", .service = true}, {.name = "t"}}), "no InvalidArgument");
  EXPECT_THAT(check({{.name = "t"}, {.name = "t"}}), HasSubstr("'t' is given twice"));
  EXPECT_THAT(check({{.name = ""}}), HasSubstr("a name has letters"));
  EXPECT_THAT(check({{.name = "t", .ranks = 0}}), HasSubstr("at least 1 rank"));
  EXPECT_THAT(check({{.name = "ps", .service = true}}), HasSubstr("every role is a service"));
  EXPECT_THAT(check({{.name = "a", .ranks = 1 << 20}, {.name = "b"}}), HasSubstr("more than"));
}

const std::vector<Role> kRoles = {{.name = "ps", .ranks = 1, .restarts = 3, .service = true},
                                  {.name = "trainer", .ranks = 4}};

TEST(Roles, NumberTheRanksInTheirOrder) {
  EXPECT_EQ(rank_count(kRoles), 5);
  EXPECT_EQ(name_in_role(kRoles, 0), "ps 0");
  EXPECT_EQ(name_in_role(kRoles, 1), "trainer 0");
  EXPECT_EQ(name_in_role(kRoles, 4), "trainer 3");
  EXPECT_EQ(name_in_role({}, 4), "");
  EXPECT_EQ(role_ranges(kRoles), "ps=0-0,trainer=1-4");
}

EnvLookup lookup(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(std::string(name));
    return it == variables.end() || it->second.empty() ? std::nullopt : std::optional(it->second);
  };
}

AttemptPlan plan_of(const std::vector<Role>& roles) {
  AttemptPlan plan;
  plan.node.local_ranks = plan.node.world_size = 5;
  plan.role = "default";
  plan.roles = roles;
  plan.node.store = {"127.0.0.1", 4000};
  return plan;
}

TEST(Roles, AreInTheEnvironmentOfEachRank) {
  AttemptPlan plan = plan_of(kRoles);
  plan.restart_count = 2;
  const Variables ps = rank_variables(plan, 0, "", lookup({}));
  const Variables trainer = rank_variables(plan, 3, "", lookup({}));
  EXPECT_EQ(ps.at("ROLE_NAME"), "ps");
  EXPECT_EQ(ps.at("ROLE_RANK"), "0");
  EXPECT_EQ(ps.at("ROLE_WORLD_SIZE"), "1");
  EXPECT_EQ(ps.at("TORCHELASTIC_RESTART_COUNT"), "2");
  EXPECT_EQ(ps.at("TORCHELASTIC_MAX_RESTARTS"), "3");
  EXPECT_EQ(ps.at("LOCKSTEP_RESTART_COUNT"), "2");
  EXPECT_EQ(trainer.at("RANK"), "3");
  EXPECT_EQ(trainer.at("ROLE_NAME"), "trainer");
  EXPECT_EQ(trainer.at("ROLE_RANK"), "2");
  EXPECT_EQ(trainer.at("ROLE_WORLD_SIZE"), "4");
  EXPECT_EQ(trainer.at("LOCKSTEP_RESTART_COUNT"), "") << "it is not started again alone";
  // The interpretation by programs.
  EXPECT_EQ(read_job_environment(lookup(ps)).own_restarts, 2);
  EXPECT_FALSE(read_job_environment(lookup(trainer)).own_restarts);
  const JobRole role = read_job_role(lookup(trainer));
  EXPECT_EQ(role.name, "trainer");
  EXPECT_EQ(role.rank, 2);
  EXPECT_EQ(role.count, 4);
  EXPECT_THAT(role.roles, ElementsAre(RoleRanks{"ps", 0, 1}, RoleRanks{"trainer", 1, 4}));
  EXPECT_EQ(role.ranks_of("ps").first, 0);
  EXPECT_THAT(refusal([&] { role.ranks_of("worker"); }),
              HasSubstr("no role 'worker' (its roles: ps, trainer)"));
}

TEST(Roles, WithoutAnyAllRanksHaveOne) {
  const Variables variables = rank_variables(plan_of({}), 3, "", lookup({}));
  EXPECT_EQ(variables.at("LOCKSTEP_ROLES"), "") << "an outer job's is removed";
  EXPECT_EQ(variables.at("ROLE_RANK"), "3");
  const JobRole role = read_job_role(lookup(variables));
  EXPECT_EQ(role.name, "default");
  EXPECT_EQ(role.rank, 3);
  EXPECT_THAT(role.roles, ElementsAre(RoleRanks{"default", 0, 5}));
  EXPECT_THAT(read_job_role(lookup({})).roles, ElementsAre(RoleRanks{"default", 0, 1}));
  const Variables torchrun = {{"RANK", "3"},           {"WORLD_SIZE", "5"},    {"MASTER_ADDR", "h"},
                              {"MASTER_PORT", "1"},    {"ROLE_NAME", "actor"}, {"ROLE_RANK", "1"},
                              {"ROLE_WORLD_SIZE", "2"}};
  EXPECT_EQ(read_job_role(lookup(torchrun)).name, "actor");
  EXPECT_EQ(read_job_role(lookup(torchrun)).rank, 1);
  EXPECT_THAT(read_job_role(lookup(torchrun)).roles, IsEmpty()) << "the others' are not known";
}

TEST(Roles, WrongOnesInTheEnvironmentAreNamed) {
  for (const char* text : {"ps=0-0", "ps=0-0,trainer=1-9", "ps=0-0,trainer=2-4", "ps=0-0,trainer",
                           "=0-4", "ps=0", "ps=0-4,", "ps=4-0"}) {
    Variables variables = rank_variables(plan_of(kRoles), 1, "", lookup({}));
    variables["LOCKSTEP_ROLES"] = text;
    EXPECT_THAT(refusal([&] { read_job_role(lookup(variables)); }), HasSubstr("LOCKSTEP_ROLES="))
        << text;
  }
}

TEST(Roles, AreInTheReport) {
  EXPECT_EQ(restart_line(0, "ps 0", {0, SIGSEGV}, 42, 1, 3),
            "[lockstep] rank 0 (ps 0) killed by SIGSEGV, pid 42; it is started again, 1 of 3\n");
  EXPECT_EQ(restart_line(0, "ps 0", {7, 0}, 42, 0, 3),
            "[lockstep] rank 0 (ps 0) exited with code 7, pid 42; it is not started again, since "
            "the job ends\n");
  WorkerFailure failure;
  failure.rank = 2;
  failure.role = "ps 2";
  failure.pid = 7;
  failure.exit_code = 3;
  EXPECT_EQ(format_failure(failure, 5),
            "[lockstep] rank 2 of 5 (ps 2) failed first: exited with code 3, pid 7\n");
  failure.restarts = 2;
  EXPECT_EQ(format_failure(failure, 5),
            "[lockstep] rank 2 of 5 (ps 2, after 2 restarts) failed first: exited with code 3, pid "
            "7\n");
}

// The agent's actions, at given times.

constexpr milliseconds kGrace(1000);
constexpr milliseconds kPause(100);  // before the first restart

class RolesSupervisor : public ::testing::Test {
 protected:
  // A server that may be restarted twice, and two trainers.
  std::vector<SignalOrder> exits(std::vector<RankExit> list, milliseconds at = {}) {
    return supervisor_.on_exits(list, kStart + at);
  }
  std::vector<int> restarts(milliseconds at) { return supervisor_.take_restarts(kStart + at); }

  Supervisor supervisor_{{{.restarts = 2, .service = true}, {}, {}}, kGrace};
};

TEST_F(RolesSupervisor, AFailedRankIsStartedAgainAloneAfterAPause) {
  EXPECT_THAT(exits({killed(0, SIGKILL)}), IsEmpty()) << "the others go on";
  EXPECT_TRUE(supervisor_.waits(0));
  EXPECT_FALSE(supervisor_.running(0));
  EXPECT_FALSE(supervisor_.failure());
  EXPECT_EQ(supervisor_.restarts(0), 1);
  EXPECT_EQ(supervisor_.next_time(), kStart + kPause);
  EXPECT_THAT(restarts(kPause - milliseconds(1)), IsEmpty());
  EXPECT_THAT(restarts(kPause), ElementsAre(0));
  EXPECT_TRUE(supervisor_.running(0));
  EXPECT_FALSE(supervisor_.waits(0));
  EXPECT_FALSE(supervisor_.next_time());
  EXPECT_THAT(restarts(kPause), IsEmpty()) << "once";
}

TEST_F(RolesSupervisor, UsedUpRestartsEndTheJob) {
  exits({exited(0, 1)});
  restarts(kPause);
  exits({exited(0, 1)});
  EXPECT_THAT(restarts(2 * kPause), ElementsAre(0)) << "the pauses grow";
  EXPECT_THAT(exits({exited(0, 5)}), ElementsAre(group(1, SIGTERM), group(2, SIGTERM)));
  EXPECT_EQ(supervisor_.failure()->status.exit_code, 5);
  EXPECT_FALSE(supervisor_.waits(0));
}

TEST_F(RolesSupervisor, ExitCodeTwoIsFinal) {
  EXPECT_THAT(exits({exited(0, 2)}), ElementsAre(group(1, SIGTERM), group(2, SIGTERM)));
  EXPECT_EQ(supervisor_.failure()->local_rank, 0);
}

TEST_F(RolesSupervisor, AFailureOfAnotherRoleEndsTheJobAndRestartsNobody) {
  exits({killed(0, SIGKILL)});
  EXPECT_THAT(exits({exited(1, 1)}), ElementsAre(group(2, SIGTERM)));
  EXPECT_FALSE(supervisor_.waits(0));
  EXPECT_THAT(restarts(kPause), IsEmpty());
  EXPECT_FALSE(supervisor_.done());
  exits({killed(2, SIGTERM)});
  EXPECT_TRUE(supervisor_.done());
  EXPECT_EQ(supervisor_.failure()->local_rank, 1);
}

TEST_F(RolesSupervisor, OfFailuresFoundTogetherTheFinalOneEndsTheJob) {
  EXPECT_THAT(exits({killed(0, SIGKILL), exited(1, 1)}), ElementsAre(group(2, SIGTERM)));
  EXPECT_EQ(supervisor_.failure()->local_rank, 1);
  EXPECT_FALSE(supervisor_.waits(0));
  EXPECT_EQ(supervisor_.restarts(0), 0);
}

TEST_F(RolesSupervisor, ASignalCancelsRestarts) {
  exits({killed(0, SIGKILL), exited(1, 0), exited(2, 0)});
  Supervisor waiting({{.restarts = 1}}, kGrace);
  waiting.on_exits(std::vector{killed(0, SIGKILL)}, kStart);
  EXPECT_FALSE(waiting.done());
  EXPECT_THAT(waiting.on_signal(SIGINT, kStart), IsEmpty());
  EXPECT_TRUE(waiting.done());
  EXPECT_THAT(waiting.take_restarts(kStart + kGrace), IsEmpty());
  EXPECT_EQ(waiting.stop_signal(), SIGINT);
}

TEST_F(RolesSupervisor, ServicesAreStoppedWhenTheOthersHaveEndedWell) {
  EXPECT_THAT(exits({exited(1, 0)}), IsEmpty());
  EXPECT_THAT(exits({exited(2, 0)}), ElementsAre(group(0, SIGTERM)));
  EXPECT_EQ(supervisor_.next_time(), kStart + kGrace);
  EXPECT_THAT(supervisor_.on_time(kStart + kGrace), ElementsAre(group(0, SIGKILL)));
  exits({killed(0, SIGKILL)});
  EXPECT_TRUE(supervisor_.done());
  EXPECT_FALSE(supervisor_.failure()) << "how a service ends then does not matter";
  EXPECT_FALSE(supervisor_.stop_signal());
}

TEST_F(RolesSupervisor, AServiceThatWaitsForItsRestartIsNotNeededAnyMore) {
  exits({exited(1, 0)});
  exits({killed(0, SIGSEGV)});
  exits({exited(2, 0)});
  EXPECT_TRUE(supervisor_.done());
  EXPECT_FALSE(supervisor_.failure());
}

TEST_F(RolesSupervisor, AServiceThatEndsWellEarlyIsNoReasonToStop) {
  EXPECT_THAT(exits({exited(0, 0)}), IsEmpty());
  EXPECT_FALSE(supervisor_.waits(0));
  EXPECT_THAT(exits({exited(1, 0), exited(2, 0)}), IsEmpty());
  EXPECT_TRUE(supervisor_.done());
}

TEST(RolesSupervisorOfSeveralHosts, ServicesWaitForTheOrder) {
  Supervisor supervisor({{.restarts = 1, .service = true}, {}}, kGrace, false);
  EXPECT_FALSE(supervisor.served());
  EXPECT_THAT(supervisor.on_exits(std::vector{exited(1, 0)}, kStart), IsEmpty());
  EXPECT_TRUE(supervisor.served());
  EXPECT_THAT(supervisor.on_exits(std::vector{killed(0, SIGKILL)}, kStart), IsEmpty());
  EXPECT_THAT(supervisor.take_restarts(kStart + kPause), ElementsAre(0)) << "others may need it";
  EXPECT_THAT(supervisor.on_stop(kStart), ElementsAre(group(0, SIGTERM)));
}

TEST_F(RolesSupervisor, ASignalWhileServicesStopKillsThem) {
  exits({exited(1, 0), exited(2, 0)});
  EXPECT_THAT(supervisor_.on_signal(SIGINT, kStart), ElementsAre(group(0, SIGKILL)));
}

TEST(RestartPause, DoublesUpToFiveSeconds) {
  EXPECT_EQ(restart_pause(1), milliseconds(100));
  EXPECT_EQ(restart_pause(2), milliseconds(200));
  EXPECT_EQ(restart_pause(6), milliseconds(3200));
  EXPECT_EQ(restart_pause(7), milliseconds(5000));
  EXPECT_EQ(restart_pause(1'000'000), milliseconds(5000));
}

}  // namespace roles_test
}  // namespace lockstep::inline v0::launch
