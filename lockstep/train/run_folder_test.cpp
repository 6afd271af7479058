#include "lockstep/train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::inline v0::run_folder_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunFolder, KeepsEveryFormerRun) {
  const TestDirectory dir;
  const auto run = [&](const std::string& what) {
    dir.write("config.json", what);
    std::filesystem::create_directory(dir / "checkpoints");
    dir.write("checkpoints/model", what);
    dir.write("data", "stays");
  };
  EXPECT_FALSE(move_former_run_aside({dir.path()}));
  run("1");
  EXPECT_THAT(move_former_run_aside({dir.path()}).value_or(""),
              AllOf(HasSubstr((dir / "previous").string()), Not(HasSubstr("previous-"))));
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"data", "previous"}));
  run("2");
  EXPECT_THAT(move_former_run_aside({dir.path()}).value_or(""),
              HasSubstr((dir / "previous-1").string()));
  run("3");
  ASSERT_TRUE(move_former_run_aside({dir.path()}));
  EXPECT_EQ(dir.read("previous/checkpoints/model"), "3");
  EXPECT_EQ(dir.read("previous-2/config.json"), "2");
  EXPECT_EQ(dir.read("previous-1/config.json"), "1");
  EXPECT_EQ(dir.names(),
            (std::vector<std::string>{"data", "previous", "previous-1", "previous-2"}));

  std::filesystem::remove_all(dir / "previous-1");  // by the user
  run("4");
  ASSERT_TRUE(move_former_run_aside({dir.path()}));
  EXPECT_EQ(dir.read("previous-3/config.json"), "3") << "the greatest number is the latest";
}

// As an object store or an exFAT disk gives a run back.
TEST(RunFolder, CheckpointsAreFoundWhereACopyHasDroppedTheLinks) {
  for (const char* series : {"checkpoints", ""}) {
    const TestDirectory dir;
    const std::filesystem::path folder = dir / series;
    std::filesystem::create_directories(folder);
    for (const int64_t step : {2, 4, 6}) {
      TrainerState state{.step = step, .best_step = step == 2 ? 2 : 4};
      Checkpoint checkpoint;
      checkpoint.trainer_json = to_json(state);
      write_checkpoint_of_step(folder, step, checkpoint, {.best = step < 6});
    }
    EXPECT_EQ(std::filesystem::canonical(find_checkpoint(dir.path())).filename(), "checkpoint-4");
    for (const char* link : {"last", "best"}) std::filesystem::remove(folder / link);
    EXPECT_EQ(find_checkpoint(dir.path()), checkpoint_of_step(folder, 4));
    for (const char* best : {"best", "best/"}) {
      EXPECT_EQ(find_checkpoint(folder / best), checkpoint_of_step(folder, 4));
      EXPECT_EQ(checkpoint_meant(folder / best), checkpoint_of_step(folder, 4));
    }
    EXPECT_EQ(checkpoint_meant(dir.path()), checkpoint_of_step(folder, 4));
    EXPECT_EQ(checkpoint_meant(folder / "last/"), checkpoint_of_step(folder, 6));
    EXPECT_EQ(checkpoint_meant(dir / "none"), dir / "none");
    std::filesystem::remove_all(checkpoint_of_step(folder, 4));
    EXPECT_EQ(find_checkpoint(dir.path()), checkpoint_of_step(folder, 6));
    EXPECT_EQ(find_checkpoint(folder / "last"), checkpoint_of_step(folder, 6));
  }
}

EnvLookup environment(std::map<std::string, std::string> values) {
  return [values = std::move(values)](std::string_view name) -> std::optional<std::string> {
    const auto at = values.find(std::string(name));
    if (at == values.end() || at->second.empty()) return std::nullopt;
    return at->second;
  };
}

TEST(RunFolder, AJobThatIsStartedAgainKnowsItsOwnRun) {
  const TestDirectory dir;
  const RunFolder folder{dir.path()};
  const auto attempt = [](const std::string& id, const std::string& count) {
    return environment({{"TORCHELASTIC_RUN_ID", id}, {"TORCHELASTIC_RESTART_COUNT", count}});
  };
  EXPECT_FALSE(left_by_this_job(dir.path(), attempt("a", "1"))) << "there is nothing";
  EXPECT_FALSE(make_room_for_run(folder, attempt("a", "0")));
  dir.write("metrics.jsonl", "of a");
  EXPECT_TRUE(left_by_this_job(dir.path(), attempt("a", "1")));
  EXPECT_FALSE(left_by_this_job(dir.path(), attempt("a", "0"))) << "a new job of the same name";
  EXPECT_FALSE(left_by_this_job(dir.path(), attempt("b", "1")));
  EXPECT_FALSE(left_by_this_job(dir.path(), attempt("none", "1")));
  EXPECT_FALSE(left_by_this_job(dir.path(), environment({})));
  EXPECT_TRUE(left_by_this_job(
      dir.path(), environment({{"TORCHELASTIC_RUN_ID", "a"}, {"LOCKSTEP_RESTART_COUNT", "2"}})));

  EXPECT_FALSE(make_room_for_run(folder, attempt("a", "1")));
  EXPECT_EQ(dir.read("metrics.jsonl"), "of a");
  EXPECT_TRUE(make_room_for_run(folder, attempt("b", "0")));
  EXPECT_EQ(dir.read("previous/metrics.jsonl"), "of a");
  EXPECT_TRUE(left_by_this_job(dir.path(), attempt("b", "1")));

  ASSERT_TRUE(make_room_for_run(folder, environment({}))) << "nobody's job";
  EXPECT_FALSE(left_by_this_job(dir.path(), attempt("b", "1")));
  EXPECT_FALSE(make_room_for_run(folder, environment({{"SLURM_JOB_ID", "7"}})));
  EXPECT_TRUE(left_by_this_job(dir.path(),
                               environment({{"SLURM_JOB_ID", "7"}, {"SLURM_RESTART_COUNT", "1"}})));
  EXPECT_FALSE(left_by_this_job(dir.path(),
                                environment({{"SLURM_JOB_ID", "7"}, {"LOCKSTEP_GENERATION", "1"}})))
      << "of a launcher's job, not of Slurm's";
  dir.write("job.json", "{");
  EXPECT_FALSE(left_by_this_job(
      dir.path(), environment({{"SLURM_JOB_ID", "7"}, {"SLURM_RESTART_COUNT", "1"}})));
}

// Whatever makes the ranks begin once more: the run goes on, and nothing is moved aside.
TEST(RunFolder, EveryWayInWhichTheRanksOfAJobBeginAgain) {
  using Variables = std::map<std::string, std::string>;
  const Variables first = {{"TORCHELASTIC_RUN_ID", "a"},
                           {"TORCHELASTIC_RESTART_COUNT", "0"},
                           {"LOCKSTEP_GENERATION", "0"}};
  const Variables in_slurm = {{"TORCHELASTIC_RUN_ID", "drawn at its first start"},
                              {"LOCKSTEP_GENERATION", "0"},
                              {"SLURM_JOB_ID", "7"}};
  struct Way {
    const char* what;
    Variables first, then;
    bool goes_on = true;
  };
  const Way ways[] = {
      {"a failure, counted",
       first,
       {{"TORCHELASTIC_RESTART_COUNT", "1"}, {"LOCKSTEP_GENERATION", "1"}}},
      {"a host that came or went, not counted", first, {{"LOCKSTEP_GENERATION", "1"}}},
      {"a failure, and then a host",
       first,
       {{"TORCHELASTIC_RESTART_COUNT", "1"}, {"LOCKSTEP_GENERATION", "2"}}},
      {"a rank that was replaced", first, {{"LOCKSTEP_RESTART_COUNT", "1"}}},
      {"torchrun's restart", {{"TORCHELASTIC_RUN_ID", "a"}}, {{"TORCHELASTIC_RESTART_COUNT", "1"}}},
      {"Slurm's requeue of srun", {{"SLURM_JOB_ID", "7"}}, {{"SLURM_RESTART_COUNT", "1"}}},
      {"Slurm's requeue of a launcher, which draws another name",
       in_slurm,
       {{"TORCHELASTIC_RUN_ID", "drawn anew"}, {"SLURM_RESTART_COUNT", "1"}}},
      {"a second job of that name", first, {}, false},
      {"another job's second generation",
       first,
       {{"TORCHELASTIC_RUN_ID", "b"}, {"LOCKSTEP_GENERATION", "1"}},
       false},
      {"two launchers in one job of Slurm's, one after the other",
       in_slurm,
       {{"TORCHELASTIC_RUN_ID", "drawn anew"}},
       false},
  };
  for (const Way& way : ways) {
    const TestDirectory dir;
    const RunFolder folder{dir.path()};
    Variables then = way.first;
    for (const auto& [name, value] : way.then) then[name] = value;
    EXPECT_FALSE(make_room_for_run(folder, environment(way.first))) << way.what;
    dir.write("metrics.jsonl", "of the first");
    EXPECT_EQ(left_by_this_job(dir.path(), environment(then)), way.goes_on) << way.what;
    EXPECT_EQ(make_room_for_run(folder, environment(then)).has_value(), !way.goes_on) << way.what;
    dir.write("metrics.jsonl", "of the second");
    then["LOCKSTEP_GENERATION"] = "9";
    if (then.contains("TORCHELASTIC_RUN_ID")) {
      EXPECT_TRUE(left_by_this_job(dir.path(), environment(then))) << way.what << ", and again";
    }
  }
}

}  // namespace lockstep::inline v0::run_folder_test
