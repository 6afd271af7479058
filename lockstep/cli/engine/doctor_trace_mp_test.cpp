// Traces of real jobs, from the first call to the report of `lockstep doctor --trace`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/launch/launch_test_support.h"

namespace lockstep::inline v0::engine::doctor_trace_mp_test {

using launch::launch_test_support::Started;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

std::string tests_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}
std::string program() {
  return tests_folder() + "/doctor_test_program";
}

std::string lockstep() {
  return std::filesystem::path(tests_folder()).parent_path() / "lockstep";
}

Started job(const TestDirectory& dir, const std::string& behaviour) {
  return Started(
      {lockstep(), "run", "-np", "3", "--trace-dir", dir / "traces", program(), behaviour});
}

// Returns the doctor's output; `code` is the expected exit code.
std::string doctor(const TestDirectory& dir, int code) {
  Started started({lockstep(), "doctor", "--trace", dir / "traces", "--json", dir / "report.json"});
  EXPECT_EQ(started.finish(), code) << started.said;
  return started.said;
}

TEST(DoctorTrace, ARankThatCallsSomethingElseIsNamedWithBothCalls) {
  const TestDirectory dir;
  Started ranks = job(dir, "step");
  EXPECT_EQ(ranks.finish(), 1);
  EXPECT_THAT(ranks.said, HasSubstr("[lockstep] traces of ranks 0 to 2 in "));
  const std::string said = doctor(dir, 1);
  EXPECT_THAT(said, AllOf(HasSubstr("Traces of 3 of 3 ranks"),
                          HasSubstr("The ranks fell out of step at call #4:"),
                          HasSubstr("ranks 0 and 2  all_reduce sum float32 x 1000 at "
                                    "doctor_test_program.cpp:"),
                          HasSubstr("rank 1         broadcast float32 x 1000, root 0 at "
                                    "doctor_test_program.cpp:"),
                          HasSubstr("The last call that all made alike was #3 all_reduce")));
  const auto json = nlohmann::json::parse(dir.read("report.json"));
  EXPECT_EQ(json.at("groups").at(0).at("divergence").at("sequence"), 4);
}

TEST(DoctorTrace, AJobThatHangsIsLookedAtWhileItRuns) {
  const TestDirectory dir;
  Started ranks = job(dir, "hang");
  ranks.await("rank 1 pauses");
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the others arrive at their next call
  ranks.process().signal(SIGUSR1);
  ranks.await("(SIGUSR1)");
  EXPECT_FALSE(ranks.process().poll().has_value()) << "the job goes on";
  EXPECT_THAT(doctor(dir, 1),
              AllOf(HasSubstr("ranks 0 and 2 came to #4 all_reduce sum float32 x 1000 at "),
                    HasSubstr("rank 1 is 1 call behind: it left #3 all_reduce"),
                    Not(HasSubstr("out of step"))));
  ranks.process().signal(SIGTERM);
  EXPECT_EQ(ranks.finish(), 128 + SIGTERM);
}

TEST(DoctorTrace, AKilledRankHasATraceToo) {
  const TestDirectory dir;
  Started ranks = job(dir, "die");
  EXPECT_EQ(ranks.finish(), 1);
  EXPECT_THAT(doctor(dir, 1),
              AllOf(HasSubstr("Traces of 3 of 3 ranks"), HasSubstr("rank 1 killed by SIGKILL"),
                    HasSubstr("rank 1 is 1 call behind: it left #3")));
}

TEST(DoctorTrace, WithoutAnAgentARankWritesItsOwnWhenItsCommunicatorBreaks) {
  const TestDirectory dir;
  const auto rank = [&](int number) {
    return Started({program(), "late", dir / "store", std::to_string(number)},
                   {{"LOCKSTEP_TRACE_DIR", dir / "traces"}});
  };
  Started first = rank(0), second = rank(1);
  EXPECT_EQ(first.finish(), 1);
  second.process().signal(SIGKILL);
  EXPECT_EQ(second.finish(), 128 + SIGKILL);
  EXPECT_THAT(first.said, HasSubstr("[lockstep] trace of rank 0: "));
  EXPECT_THAT(doctor(dir, 1),
              AllOf(HasSubstr("Traces of 1 of 2 ranks"), HasSubstr("No trace of rank 1: "),
                    HasSubstr("not arrived: rank 1")));
}

struct Look {
  int code = 0;  // the exit code
  std::string said;
};

// Returns the output of `lockstep doctor --live` about a running job, at its last look.
Look live(const std::string& behaviour) {
  const TestDirectory dir;
  Started ranks = job(dir, behaviour);
  ranks.await("all are training");
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // gives it some time to observe
  Started doctor({lockstep(), "doctor", "--live", std::to_string(ranks.process().pid()), "--times",
                  "2", "--every", "0.5"});
  const int code = doctor.finish();
  EXPECT_FALSE(ranks.process().poll().has_value()) << "the job goes on";
  ranks.process().signal(SIGTERM);
  EXPECT_EQ(ranks.finish(), 128 + SIGTERM);
  const std::string& said = doctor.said;
  return {code, said.substr(said.rfind("job of pid "))};
}

TEST(DoctorLive, TheRankThatTheOthersWaitForIsNamed) {
  const Look look = live("slow");
  EXPECT_EQ(look.code, 1);
  EXPECT_THAT(look.said,
              AllOf(HasSubstr("3 of 3 ranks are on this host; the last "),
                    HasSubstr("all_reduce sum float32 x 1000 at doctor_test_program.cpp:"),
                    HasSubstr("\nrank 1 is late: the others wait for it ")));
}

// A rank that this machine delays is named rightly, but not again and again.
TEST(DoctorLive, NobodyIsNamedWhereAllAreAlike) {
  Look look = live("even");
  for (int again = 0; look.code != 0 && again < 2; ++again) look = live("even");
  EXPECT_EQ(look.code, 0);
  EXPECT_THAT(look.said,
              AllOf(HasSubstr("3 of 3 ranks are on this host"), Not(HasSubstr("is late"))));
}

TEST(DoctorLive, WithoutAJobThereIsOneLine) {
  Started doctor({lockstep(), "doctor", "--live", std::to_string(::getpid())});
  EXPECT_EQ(doctor.finish(), 1);
  EXPECT_THAT(doctor.said, HasSubstr("no job of Lockstep's has that process"));
  Started wrong({lockstep(), "doctor", "--live", "x"});
  EXPECT_EQ(wrong.finish(), 2);
  Started alone({lockstep(), "doctor", "--times", "3"});
  EXPECT_EQ(alone.finish(), 2);
  EXPECT_THAT(alone.said, HasSubstr("--every and --times go with --live"));
}

}  // namespace lockstep::inline v0::engine::doctor_trace_mp_test
