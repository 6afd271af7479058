#include "lockstep/cli/engine/compare/programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::engine::programs_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names(const std::vector<ComparedJob>& jobs) {
  std::vector<std::string> names;
  for (const ComparedJob& job : jobs)
    names.push_back(job.folder.filename().string() + " " + std::to_string(job.nproc));
  return names;
}

const std::vector<ComparedProgram>& all() {
  static const std::vector<ComparedProgram> programs = parse_programs(
      R"([{"name": "single", "tutorial": "single-gpu-cls"}, {"name": "data_parallel", "nproc": true},
          {"name": "distributed", "ranks": true}, {"name": "distributed_spawn", "nproc": true},
          {"name": "distributed_amp", "ranks": true, "amp": true}])",
      "programs.json");
  return programs;
}

std::vector<ComparedJob> plan(const ProgramsArguments& arguments) {
  return plan_programs(choose_programs(all(), arguments.methods), arguments, "/bin/lockstep");
}

ProgramsArguments parsed(Arguments arguments) {
  arguments.insert(arguments.begin(), {"--programs", "/p"});
  return parse_programs_arguments(arguments);
}

std::vector<std::string> command(const ProgramsArguments& arguments, size_t job) {
  return plan(arguments).at(job).command;
}

TEST(ProgramsPlan, MethodsAreInTheOrderOfTheFile) {
  EXPECT_EQ(choose_programs(all(), "all").size(), 5u);
  std::vector<std::string> chosen;
  for (const ComparedProgram& program : choose_programs(all(), "distributed,single,distributed"))
    chosen.push_back(program.name);
  EXPECT_THAT(chosen, ElementsAre("single", "distributed"));
  EXPECT_THAT(message_of<InvalidArgument>([] { choose_programs(all(), "single,distribted"); }),
              HasSubstr("no method 'distribted'; did you mean 'distributed'?"));
  EXPECT_THAT(message_of<InvalidArgument>([] { choose_programs(all(), ""); }), HasSubstr("empty"));
  EXPECT_THAT(message_of<DataError>([] { parse_programs(R"([{"name": 1}])", "p.json"); }),
              HasSubstr("p.json: a program.name is 1"));
}

TEST(ProgramsPlan, OneProcessOrRanksOfItsOwn) {
  ProgramsArguments arguments = parsed(
      {"--methods", "single,data_parallel,distributed_spawn", "--nproc", "3", "--output", "o"});
  arguments.data = "d";
  EXPECT_THAT(names(plan(arguments)),
              ElementsAre("single 1", "data_parallel 3", "distributed_spawn 3"));
  EXPECT_THAT(command(arguments, 0),
              ElementsAre("/p/single", "--data", "d", "--model", "mini", "--output", "o/single",
                          "--json", "o/single/run.json"));
  EXPECT_THAT(
      command(arguments, 2),
      ElementsAre("/p/distributed_spawn", "--data", "d", "--model", "mini", "--nproc", "3",
                  "--output", "o/distributed_spawn", "--json", "o/distributed_spawn/run.json"));
}

TEST(ProgramsPlan, RanksUnderLockstepRunAndWhatWasGivenGoesOn) {
  ProgramsArguments arguments =
      parsed({"--methods=distributed,distributed_amp", "--recipe", "tutorial", "--max_steps", "5",
              "--seed=7", "--pack", "--amp", "float16", "--vocab", "v.txt", "--model", "base",
              "--remove-spaces"});
  arguments.data = "d";
  EXPECT_EQ(arguments.recipe, "tutorial");
  EXPECT_THAT(
      command(arguments, 0),
      ElementsAre("/bin/lockstep", "run", "--nproc-per-node", "2", "/p/distributed", "--data", "d",
                  "--vocab", "v.txt", "--model", "base", "--recipe", "tutorial", "--max-steps", "5",
                  "--seed", "7", "--padding", "packed", "--remove-spaces", "--output",
                  "runs/compare/distributed", "--json", "runs/compare/distributed/run.json"));
  EXPECT_THAT(command(arguments, 1), testing::IsSupersetOf({"--amp", "float16"}));
}

TEST(ProgramsPlan, ScalingAddsRunsOfWhatHasRanks) {
  const ProgramsArguments arguments =
      parsed({"--methods", "single,distributed", "--scaling", "4,1,2,4", "--output", "o"});
  EXPECT_THAT(
      names(plan(arguments)),
      ElementsAre("single 1", "distributed 2", "distributed-ranks-1 1", "distributed-ranks-4 4"));
}

TEST(CompareOptions, AProgramThatJobsNeedIsThere) {
  const TestDirectory dir;
  const auto refused = [&](const std::string& name) {
    return message_of<InvalidArgument>([&] { job_program(dir / name); });
  };
  EXPECT_THAT(refused("lockstep"), HasSubstr((dir / "lockstep").string() +
                                             ", which the jobs need, is missing; build the target "
                                             "lockstep"));
  dir.write("lockstep", "#!/bin/sh\n");
  EXPECT_THAT(refused("lockstep"), HasSubstr("is missing")) << "it cannot be executed";
  EXPECT_THAT(refused("."), HasSubstr("is missing")) << "a directory";
  ::chmod((dir / "lockstep").c_str(), 0755);
  EXPECT_EQ(job_program(dir / "lockstep"), (dir / "lockstep").string());
}

TEST(ProgramsPlan, BadOptionsAreOneLine) {
  const auto says = [](const Arguments& arguments) {
    const std::string line = message_of<InvalidArgument>([&] { parsed(arguments); });
    EXPECT_EQ(line.find('\n'), std::string::npos);
    return line;
  };
  EXPECT_THAT(says({"--nproc", "0"}), HasSubstr("--nproc is 0"));
  EXPECT_THAT(says({"--nproc", "5000"}), HasSubstr("1 to 1024"));
  EXPECT_THAT(says({"--max-steps", "0"}), HasSubstr("--max-steps is '0'; give a whole number"));
  EXPECT_THAT(says({"--epochs", "half"}), HasSubstr("--epochs is 'half'"));
  EXPECT_THAT(says({"--padding", "none"}), HasSubstr("choose from max_length|longest|packed"));
  EXPECT_THAT(says({"--amp", "int8"}), HasSubstr("choose from bfloat16|float16"));
  EXPECT_THAT(says({"--no-such"}), HasSubstr("--no-such"));
  EXPECT_THAT(says({"--pack", "--padding", "longest"}), HasSubstr("contradict"));
  EXPECT_THAT(says({"--scaling", "1,x"}), HasSubstr("--scaling has 'x'"));
  EXPECT_THAT(says({"--timeout", "0"}), HasSubstr("--timeout"));
}

}  // namespace lockstep::inline v0::engine::programs_test
