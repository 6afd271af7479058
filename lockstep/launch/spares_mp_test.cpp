// Spares with real processes: one replaces a dead rank, and none is left over.
#include "lockstep/launch/spares.h"

#include <signal.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "lockstep/core/cpus.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/process_state.h"
#include "lockstep/launch/launch_test_support.h"

namespace lockstep::inline v0::launch {
namespace spares_mp_test {

using namespace launch_test_support;  // NOLINT: a test's own helpers
using testing::AllOf;
using testing::AnyOf;
using testing::Eq;
using testing::HasSubstr;
using testing::Not;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A job of two ranks with spares, which runs until end().
class Job {
 public:
  explicit Job(const Words& agent_words, const std::string& behaviour = "stay")
      : Job(agent_words, Words{}, behaviour) {}
  // `command` runs instead of the program, followed by the folder.
  Job(const Words& agent_words, Words command, const std::string& behaviour)
      : agent(words(agent_words, std::move(command), behaviour)) {
    await_life(0, 0);
    await_life(1, 0);
  }

  // The process of the rank's life number `life`, from 0; if a script starts several, the
  // `number`-th one, from 1.
  int await_life(int rank, int life, int number = 1) {
    const std::string start =
        "rank " + std::to_string(rank) + " life " + std::to_string(life) + " is pid ";
    agent.await_output(start, number);
    const size_t at = agent.out.rfind(start);
    return at == std::string::npos ? -1 : std::stoi(agent.out.substr(at + start.size()));
  }
  // A waiting spare other than the previous ones: it has written its file, and sleeps.
  int await_spare() {
    const Deadline deadline = Deadline::seconds(60);
    while (!deadline.expired()) {
      agent.read_some();
      for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
        const auto pid = parse_int(entry.path().filename().string(), 1);
        const bool spare =
            pid && text_of("/proc/" + std::to_string(*pid) + "/environ").find(kSpareFd) !=
                       std::string::npos;
        if (!spare || seen_.contains(static_cast<int>(*pid)) ||
            process_state(static_cast<int>(*pid)) != 'S')
          continue;
        seen_.insert(static_cast<int>(*pid));
        return static_cast<int>(*pid);
      }
    }
    ADD_FAILURE() << "no spare came";
    return -1;
  }
  int end() {
    std::ofstream(folder.path() / "end").flush();
    return agent.finish();
  }
  // All processes that ever started.
  void expect_none_left() {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      if (const auto pid = parse_int(entry.path().filename().string(), 1)) {
        EXPECT_TRUE(dies_soon(static_cast<int>(*pid))) << *pid;
      }
    }
  }

  TestDirectory folder;
  Running agent;

 private:
  Words words(const Words& agent_words, Words command, const std::string& behaviour) const {
    Words all{program(), "run", "nproc", "2", "restarts", "9", "grace", "300"};
    all.insert(all.end(), agent_words.begin(), agent_words.end());
    all.emplace_back("--");
    if (command.empty()) command = {program(), "spare-rank"};
    all.insert(all.end(), command.begin(), command.end());
    all.push_back(folder.path().string());
    all.push_back(behaviour);
    return all;
  }

  std::set<int> seen_;
};

TEST(Spares, OneTakesADeadRanksPlaceAndAnotherFollows) {
  Job job({"spares", "1", "prefix"});
  const int survivor = job.await_life(0, 0), spare = job.await_spare();
  ::kill(job.await_life(1, 0), SIGKILL);
  EXPECT_EQ(job.await_life(1, 1), spare);
  EXPECT_THAT(job.agent.out,
              HasSubstr("[1]: pid " + std::to_string(spare) + " has begun\n[1]: rank 1 life 1 is"));
  EXPECT_TRUE(alive(survivor));
  const int next = job.await_spare();
  ::kill(spare, SIGKILL);
  EXPECT_EQ(job.await_life(1, 2), next);
  EXPECT_TRUE(alive(survivor));
  job.await_spare();
  EXPECT_EQ(job.end(), 0) << job.agent.err;
  EXPECT_THAT(job.agent.err, AllOf(HasSubstr("is started again, 2 of 9"),
                                   HasSubstr("[lockstep] rank 1 is pid " + std::to_string(next) +
                                             " from now on, which was a spare"),
                                   Not(HasSubstr("another one is started"))));
  job.expect_none_left();
}

// The new rank is the process that had started before the death, so no rank has waited for a start.
TEST(Spares, ASlowStartLiesBehindTheSpare) {
  Job job({"spares", "1"}, "slow");
  const int spare = job.await_spare();
  ::kill(job.await_life(0, 0), SIGKILL);
  EXPECT_EQ(job.await_life(0, 1), spare);
  EXPECT_EQ(job.end(), 0) << job.agent.err;
}

TEST(Spares, OfTwoDeathsAtOnceOneIsStartedAnew) {
  Job job({"spares", "1"});
  const int spare = job.await_spare(), first = job.await_life(0, 0), second = job.await_life(1, 0);
  ::kill(first, SIGKILL);
  ::kill(second, SIGKILL);
  const int new_first = job.await_life(0, 1), new_second = job.await_life(1, 1);
  EXPECT_NE(new_first == spare, new_second == spare);
  EXPECT_EQ(job.end(), 0) << job.agent.err;
  job.expect_none_left();
}

TEST(Spares, OneThatIsKilledWhileItWaitsIsFollowedByAnother) {
  Job job({"spares", "1"});
  const int killed = job.await_spare();
  ::kill(killed, SIGKILL);
  const int next = job.await_spare();
  ::kill(job.await_life(1, 0), SIGKILL);
  EXPECT_EQ(job.await_life(1, 1), next);
  EXPECT_EQ(job.end(), 0);
  EXPECT_THAT(
      job.agent.err,
      AllOf(HasSubstr("[lockstep] a spare killed by SIGKILL"), HasSubstr("before a rank needed it"),
            HasSubstr("its last line: pid " + std::to_string(killed) + " has begun; another one")));
}

TEST(Spares, NoneOutlivesAnAgentThatIsKilled) {
  Job job({"spares", "2"});
  job.await_spare();
  job.await_spare();
  ::kill(job.agent.process().pid(), SIGKILL);
  job.agent.finish();
  job.expect_none_left();
}

TEST(Spares, NoneHoldsUpAJobThatIsStopped) {
  Job job({"spares", "1"});
  job.await_spare();
  ::kill(job.agent.process().pid(), SIGTERM);
  EXPECT_EQ(job.agent.finish(), 128 + SIGTERM);
  EXPECT_THAT(job.agent.err, Not(HasSubstr("a spare")));
  job.expect_none_left();
}

TEST(Spares, OneHasTheProcessorsOfItsRank) {
  if (allowed_cpus().size() < 2) GTEST_SKIP() << "ranks are pinned on 2 processors or more";
  Job job({"spares", "1"});
  job.await_spare();
  ::kill(job.await_life(1, 0), SIGKILL);
  job.await_life(1, 1);
  EXPECT_EQ(job.end(), 0);
  std::map<std::string, std::string> cpus;
  for (const std::string& line : lines_of(job.agent.out)) {
    if (const size_t at = line.find(" on "); at != std::string::npos)
      cpus[line.substr(0, line.find(" is "))] = line.substr(at, line.find(',') - at);
  }
  EXPECT_EQ(cpus["rank 1 life 1"], cpus["rank 1 life 0"]);
  EXPECT_NE(cpus["rank 1 life 1"], cpus["rank 0 life 0"]);
}

// A job with log files, after rank 1 has died and a spare has replaced it.
class LoggedJob {
 public:
  explicit LoggedJob(const std::string& how, const std::string& streams)
      : job({"spares", "1", "log-dir", logs_.path().string(), how, streams}),
        spare(job.await_spare()) {
    ::kill(job.await_life(1, 0), SIGKILL);
    job.await_life(1, 1);
    EXPECT_EQ(job.end(), 0);
  }
  // The log folder of the new rank.
  std::filesystem::path folder() const {
    return std::filesystem::directory_iterator(logs_.path())->path() / "attempt_1/1";
  }

 private:
  TestDirectory logs_;

 public:
  Job job;
  const int spare;
};

TEST(Spares, LogFilesHaveWhatOneWroteBeforeAndAfterwards) {
  const LoggedJob logged("tee", "1");
  EXPECT_THAT(
      text_of(logged.folder() / "stdout.log"),
      AllOf(HasSubstr("pid " + std::to_string(logged.spare) + " has begun\nrank 1 life 1 is pid "),
            HasSubstr(", error file " + (logged.folder() / "error.json").string())));
}

TEST(Spares, RedirectedOutputGoesToTheFileAlone) {
  const LoggedJob logged("redirects", "1:2");
  const std::string said = "pid " + std::to_string(logged.spare) + " has a rank\n";
  EXPECT_EQ(text_of(logged.folder() / "stderr.log"), said);
  EXPECT_THAT(logged.job.agent.err, Not(HasSubstr(said)));
}

// Both programs of the script find the rank that the spare has become.
TEST(Spares, AScriptMayStartSeveralProgramsOfTheRank) {
  Job job({"spares", "1"},
          {"/bin/sh", "-c",
           program() + " spare-rank $0 brief && exec " + program() + " spare-rank $0 $1"},
          "stay");
  const int first_program = job.await_spare();
  ::kill(job.await_life(1, 0, 2), SIGKILL);
  const int second_program = job.await_life(1, 1, 2);
  EXPECT_NE(second_program, first_program);
  EXPECT_THAT(job.agent.out, HasSubstr("rank 1 life 1 is pid " + std::to_string(first_program)));
  EXPECT_EQ(job.end(), 0) << job.agent.err;
  job.expect_none_left();
}

TEST(Spares, AProgramThatNeverAsksForItsRankRunsAsWithoutThem) {
  const TestDirectory folder;
  const std::string script =
      "[ -z $RANK ] && { echo which rank am I >&2; exit 3; }; echo rank $RANK life "
      "$LOCKSTEP_RESTART_COUNT is pid $$; "
      "while [ ! -e " +
      folder.path().string() + "/end ]; do sleep 0.02; done";
  Running agent({program(), "run", "nproc", "2", "restarts", "9", "spares", "1", "--", "/bin/sh",
                 "-c", script});
  agent.await_output(" is pid ", 2);
  const Deadline deadline = Deadline::seconds(60);
  while (agent.err.find("no more spares") == std::string::npos && !deadline.expired())
    agent.read_some();
  const size_t at = agent.out.find("rank 1 life 0 is pid ");
  ASSERT_NE(at, std::string::npos);
  ::kill(std::stoi(agent.out.substr(at + 21)), SIGKILL);
  agent.await_output("rank 1 life 1 is pid ");
  std::ofstream(folder.path() / "end").flush();
  EXPECT_EQ(agent.finish(), 0);
  EXPECT_THAT(agent.err, HasSubstr("[lockstep] a spare exited with code 3, pid "));
  EXPECT_THAT(
      agent.err,
      HasSubstr(
          "and had not come to init(); its last line: which rank am I; another one is started\n"));
  EXPECT_THAT(agent.err, HasSubstr("; no more spares are kept after so many in a row"));
}

}  // namespace spares_mp_test
}  // namespace lockstep::inline v0::launch
