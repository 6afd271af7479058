// lockstep bench collectives as its users meet it. Speed is never asserted.
#include <gtest/gtest.h>

#include <fcntl.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::engine::bench_mp_test {
namespace {

struct Ended {
  ExitStatus status;
  std::string out, err;
};

Ended run_bench(const TestDirectory& dir, const std::vector<std::string>& arguments) {
  const UniqueFd out(::creat((dir / "stdout").c_str(), 0600));
  const UniqueFd err(::creat((dir / "stderr").c_str(), 0600));
  SubprocessOptions options;
  options.command = {"lockstep", "bench", "collectives", "--rounds", "2", "--block-ms", "1"};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.program = LOCKSTEP_ENGINE;
  options.stdout_fd = out.get();
  options.stderr_fd = err.get();
  const ExitStatus status = Subprocess(options).wait(Deadline::seconds(180));
  return {status, dir.read("stdout"), dir.read("stderr")};
}

void expect_rows(const nlohmann::json& rows, const std::set<std::string>& backends) {
  for (const auto& row : rows) {
    const std::string text = row.dump();
    EXPECT_TRUE(backends.count(row.at("backend").get<std::string>())) << text;
    EXPECT_FALSE(row.at("symmetric").get<bool>()) << text;
    EXPECT_EQ(row.at("nproc"), 2) << text;
    EXPECT_GT(row.at("mean_us").get<double>(), 0) << text;
    EXPECT_GT(row.at("p50_us").get<double>(), 0) << text;
    EXPECT_LE(row.at("p50_us").get<double>(), row.at("p95_us").get<double>()) << text;
    const double algbw = row.at("algbw_GBps"), busbw = row.at("busbw_GBps");
    const std::string op = row.at("op");
    if (op == "barrier") {
      EXPECT_EQ(row.at("bytes"), 0) << text;
      continue;
    }
    // With two ranks an all_reduce moves the buffer once, what is cut in parts half of it.
    const bool in_parts = op == "all_gather" || op == "reduce_scatter" || op == "all_to_all" ||
                          op == "gather" || op == "scatter";
    EXPECT_NEAR(busbw, algbw * (in_parts ? 0.5 : 1.0), 1e-9) << text;
    const double p50 = row.at("p50_us");
    EXPECT_NEAR(algbw, row.at("bytes").get<double>() / p50 / 1e3, 1e-9 + algbw * 1e-6) << text;
    EXPECT_GT(row.at("times_first").get<double>(), 0) << text;
  }
}

TEST(BenchCollectives, MeasuresEveryOperationAndChecksItsResults) {
  const TestDirectory dir;
  const Ended ended = run_bench(
      dir, {"--ops",
            "all_reduce,broadcast,all_gather,reduce_scatter,all_to_all,reduce,gather,"
            "scatter,barrier,send",
            "--backends", "shm,gloo", "--sizes", "4,3000", "--dtypes", "float32,bfloat16", "--json",
            dir / "rows.json", "--fit", dir / "fit.json", "--svg", dir / "picture.svg"});
  ASSERT_TRUE(ended.status.ok()) << ended.err;
  const auto rows = nlohmann::json::parse(dir.read("rows.json"));
  EXPECT_EQ(rows.size(), 2u * (9 * 2 * 2 + 1));
  expect_rows(rows, {"shm", "gloo"});
  EXPECT_NE(ended.out.find("times shm"), std::string::npos) << ended.out;
  EXPECT_EQ(nlohmann::json::parse(dir.read("fit.json")).size(), 2u * 9 * 2);
  EXPECT_NE(dir.read("picture.svg").find("all_gather bfloat16"), std::string::npos);
}

TEST(BenchCollectives, BesideMpiTheRanksAreMpiruns) {
  try {
    find_program("mpirun");
  } catch (const LaunchError& error) {
    GTEST_SKIP() << error.what() << " (apt install openmpi-bin to run this test)";
  }
  const TestDirectory dir;
  const Ended ended =
      run_bench(dir, {"--ops", "all_reduce,all_to_all,gather,send", "--backends", "shm,mpi,mpi-raw",
                      "--sizes", "64,3000", "--json", dir / "rows.json"});
  ASSERT_TRUE(ended.status.ok()) << ended.err;
  const auto rows = nlohmann::json::parse(dir.read("rows.json"));
  EXPECT_EQ(rows.size(), 3u * 4 * 2);
  expect_rows(rows, {"shm", "mpi", "mpi-raw"});
}

TEST(BenchCollectives, SeveralNumbersOfRanksMakeOneTable) {
  const TestDirectory dir;
  const Ended ended = run_bench(dir, {"--backends", "shm,gloo", "--sizes", "64", "--nproc", "1,2,3",
                                      "--json", dir / "rows.json"});
  ASSERT_TRUE(ended.status.ok()) << ended.err;
  const auto rows = nlohmann::json::parse(dir.read("rows.json"));
  ASSERT_EQ(rows.size(), 6u);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].at("nproc"), i / 2 + 1);
  size_t heads = 0;
  for (size_t at = ended.out.find("times shm"); at != std::string::npos;
       at = ended.out.find("times shm", at + 1))
    ++heads;
  EXPECT_EQ(heads, 1u) << ended.out;
}

TEST(BenchCollectives, BadArgumentsAreOneLineAndExitTwo) {
  const TestDirectory dir;
  for (const auto& [arguments, word] : {
           std::pair<std::vector<std::string>, const char*>{{"--sizes", "4X"}, "--sizes"},
           {{"--ops", "allreduce"}, "choose from all_reduce"},
           {{"--dtypes", "float"}, "float32"},
           {{"--nproc", "0"}, "--nproc"},
           {{"--backends", "gloo", "--symmetric"}, "--symmetric"},
           {{"--json", "/nowhere/at/all.json"}, "/nowhere/at"},
           {{"--backends", "shm,teleport"}, "teleport"},
       }) {
    const Ended ended = run_bench(dir, arguments);
    EXPECT_EQ(ended.status.exit_code, 2) << ended.err;
    EXPECT_NE(ended.err.find(word), std::string::npos) << ended.err;
  }
}

}  // namespace
}  // namespace lockstep::engine::bench_mp_test
