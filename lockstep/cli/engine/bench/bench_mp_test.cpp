// Tests lockstep bench collectives as users run it. Speed is never asserted.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "lockstep/cli/engine/tools_run_test.h"
#include "lockstep/core/errors.h"
#include "lockstep/launch/internal/mpi_test_support.h"
#include "lockstep/launch/mpirun.h"

namespace lockstep::inline v0::engine::bench_mp_test {
namespace {

ToolsEnd run_bench(const TestDirectory& dir, Arguments arguments) {
  arguments.insert(arguments.begin(), {"bench", "collectives", "--rounds", "2", "--block-ms", "1"});
  return run_tools(dir, arguments);
}

ToolsEnd run_step(const TestDirectory& dir, Arguments arguments) {
  arguments.insert(arguments.begin(), {"bench", "step"});
  return run_tools(dir, arguments);
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
    // With two ranks an all_reduce moves the buffer once, and an operation in parts half of it.
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
  const ToolsEnd ended = run_bench(
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

TEST(BenchStep, AMeshSaysWhoSharesParameters) {
  const TestDirectory dir;
  const auto pss = [&](const char* mesh) {
    const ToolsEnd ended =
        run_step(dir, {"--model", "linear", "--strategy", "zero3", "--mesh", mesh, "--batch", "1",
                       "--rounds", "1", "--turn-ms", "1", "--json", dir / "rows.json"});
    EXPECT_TRUE(ended.status.ok()) << ended.err;
    const auto rows = nlohmann::json::parse(dir.read("rows.json"));
    EXPECT_EQ(rows.at(0).at("nproc"), 2);
    return rows.at(0).at("pss_bytes").get<double>();
  };
  // 400 MB of parameters: one copy of two ranks, or one each.
  EXPECT_GT(pss("data=2"), pss("data=1,shard=2") + 150e6);
  const ToolsEnd refused = run_step(dir, {"--mesh", "data=2,pipe=2"});
  EXPECT_EQ(refused.status.exit_code, 2);
  EXPECT_NE(refused.err.find("give axes named data and shard"), std::string::npos) << refused.err;
}

// Each contender is a job of its own; PyTorch takes part where it is installed.
TEST(BenchStep, ContendersTakeTurns) {
  const TestDirectory dir;
  const ToolsEnd ended = run_step(
      dir, {"--strategy", "ddp,average,independent,single,pytorch-ddp", "--batch", "2", "--rounds",
            "2", "--turn-ms", "1", "--json", dir / "rows.json", "--svg", dir / "picture.svg"});
  ASSERT_TRUE(ended.status.ok()) << ended.err;
  const auto rows = nlohmann::json::parse(dir.read("rows.json"));
  const bool pytorch = ended.err.find("PyTorch is left out") == std::string::npos;
  ASSERT_EQ(rows.size(), pytorch ? 5u : 4u) << ended.err;
  for (const auto& row : rows) {
    EXPECT_EQ(row.at("nproc"), row.at("strategy") == "single" ? 1 : 2);
    EXPECT_EQ(row.at("steps"), 4);
    EXPECT_GT(row.at("ms_per_step").get<double>(), 0);
    EXPECT_GT(row.at("parts_ms").at("forward").get<double>(), 0);
    EXPECT_GT(row.at("pss_bytes").get<double>(), 0);
  }
  EXPECT_GT(rows[0].at("parts_ms").at("wait").get<double>(), 0);
  EXPECT_LT(rows[2].at("parts_ms").at("wait").get<double>(), 0.01);
  EXPECT_NE(dir.read("picture.svg").find("independent"), std::string::npos);
}

TEST(BenchStep, EveryModelRuns) {
  const TestDirectory dir;
  for (const std::string model : {"resnet18", "resnet18-cifar", "bert-mini", "lm-tiny", "linear"}) {
    const bool transformer = model == "bert-mini" || model == "lm-tiny";
    const std::string strategies = transformer ? "ddp,ddp-bf16" : "ddp,in-step";
    const ToolsEnd ended = run_step(dir, {"--model", model, "--strategy", strategies, "--batch",
                                          "2", "--rounds", "1", "--turn-ms", "1"});
    EXPECT_TRUE(ended.status.ok()) << ended.err;
    EXPECT_NE(ended.out.find("2 x 2"), std::string::npos) << ended.out;
  }
}

TEST(BenchStep, RefusesWhatItDoesNotKnow) {
  const TestDirectory dir;
  for (const auto& [arguments, text] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--model", "vgg"}, "there is no model 'vgg'; choose from simple-cnn"},
           {{"--strategy", "magic"}, "there is no strategy 'magic'"},
           {{"--rounds", "0"}, "must be 1 or more"},
           {{"--json", "/nonexistent/x.json"}, "/nonexistent"}}) {
    const ToolsEnd ended = run_step(dir, arguments);
    EXPECT_EQ(ended.status.exit_code, 2) << ended.err;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
}

ToolsEnd run_rpc(const TestDirectory& dir, Arguments arguments) {
  arguments.insert(arguments.begin(), {"bench", "rpc"});
  return run_tools(dir, arguments);
}

// Programs of other projects take part where they are installed.
TEST(BenchRpc, ContendersTakeTurnsAndAnswerRight) {
  const TestDirectory dir;
  const ToolsEnd ended =
      run_rpc(dir, {"--rounds", "2", "--turn-ms", "1", "--calls", "200", "--megabytes", "0.4",
                    "--json", dir / "rows.json", "--svg", dir / "picture.svg"});
  ASSERT_TRUE(ended.status.ok()) << ended.err;
  std::map<std::string, std::set<std::string>> measured;
  for (const auto& row : nlohmann::json::parse(dir.read("rows.json"))) {
    const std::string what = row.at("what");
    EXPECT_TRUE(measured[row.at("contender")].insert(what).second) << row;
    EXPECT_GT(row.at("low").get<double>(), 0) << row;
    EXPECT_LE(row.at("low"), row.at("median")) << row;
    EXPECT_LE(row.at("median"), row.at("high")) << row;
    EXPECT_GE(row.at("operations"), what == "flight" ? 2 : what == "small" ? 40 : 6) << row;
    EXPECT_GT(row.at("first_times").get<double>(), 0) << row;
  }
  EXPECT_EQ(measured["unix-socket"], (std::set<std::string>{"small", "tensor"}));
  EXPECT_EQ(measured["tcp-socket"], (std::set<std::string>{"small", "tensor"}));
  EXPECT_EQ(measured["memcpy"], (std::set<std::string>{"tensor"}));
  for (const char* name :
       {"lockstep", "lockstep-workers", "libtorch", "libtorch-shm", "grpc", "ray"}) {
    if (ended.err.find(std::string(name) + " is left out: ") != std::string::npos) continue;
    EXPECT_EQ(measured[name], (std::set<std::string>{"small", "flight", "tensor"})) << ended.err;
  }
  EXPECT_NE(ended.out.find("lockstep is so many times as fast"), std::string::npos) << ended.out;
  EXPECT_NE(dir.read("picture.svg").find("tensor: memcpy"), std::string::npos);
}

TEST(BenchRpc, WhoIsNotHereIsLeftOutInALine) {
  const TestDirectory dir;
  const ToolsEnd ended =
      run_rpc(dir, {"--rounds", "1", "--turn-ms", "1", "--megabytes", "0.4", "--what", "tensor",
                    "--contenders", "memcpy,ray", "--python", "/nowhere/python"});
  ASSERT_TRUE(ended.status.ok()) << ended.err;
  EXPECT_NE(ended.err.find("ray is left out: "), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("/nowhere/python"), std::string::npos) << ended.err;
  EXPECT_NE(ended.out.find("memcpy"), std::string::npos) << ended.out;
}

// The folder is arranged as in an installation.
TEST(BenchStep, WherePeersAreNotALineSaysWhereTheyAre) {
  const TestDirectory dir;
  const std::string where =
      "; programs of peers are not installed: name their folder with --peers, bench/peers of "
      "Lockstep's sources or libexec/lockstep/peers of a build with tests\n";
  const ToolsEnd step = run_step(dir, {"--strategy", "single,pytorch-ddp", "--rounds", "1",
                                       "--turn-ms", "1", "--peers", dir.path().string()});
  ASSERT_TRUE(step.status.ok()) << step.err;
  EXPECT_NE(step.err.find("PyTorch is left out: there is no " + (dir / "step.py").string() + where),
            std::string::npos)
      << step.err;
  const ToolsEnd rpc =
      run_rpc(dir, {"--contenders", "memcpy,libtorch,grpc,ray", "--what", "tensor", "--rounds", "1",
                    "--turn-ms", "1", "--megabytes", "0.4", "--peers", dir / "none"});
  ASSERT_TRUE(rpc.status.ok()) << rpc.err;
  EXPECT_NE(rpc.err.find("contenders of others are left out: there is no folder " +
                         (dir / "none").string() + where),
            std::string::npos)
      << rpc.err;
  EXPECT_EQ(rpc.err.find("left out"), rpc.err.rfind("left out")) << rpc.err;
}

TEST(BenchRpc, BadArgumentsAreOneLineAndExitTwo) {
  const TestDirectory dir;
  for (const auto& [arguments, text] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--contenders", "telegraph"},
            "there is no contender 'telegraph'; choose from lockstep"},
           {{"--what", "large"}, "choose from small, flight, tensor"},
           {{"--calls", "7"}, "--calls no fewer than --threads"},
           {{"--megabytes", "0"}, "--megabytes must be above 0"},
           {{"--what", "small", "--contenders", "memcpy"}, "no contender is left to measure"},
           {{"--json", "/nonexistent/x.json"}, "/nonexistent"},
           {{"--process", "unix-socket"}, "is started by it, not by hand"}}) {
    const ToolsEnd ended = run_rpc(dir, arguments);
    EXPECT_EQ(ended.status.exit_code, 2) << ended.err;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
}

class BenchMpi : public ::testing::TestWithParam<launch::MpiFamily> {};
INSTANTIATE_TEST_SUITE_P(Families, BenchMpi, ::testing::ValuesIn(launch::kMpiFamilies),
                         [](const auto& info) { return launch::name_of(info.param); });

TEST_P(BenchMpi, TheRanksAreMpirunsAndTheRowsSayWhichItWas) {
  if (const std::string why = launch::lacks_mpirun(GetParam()); !why.empty()) GTEST_SKIP() << why;
  const auto mpirun = launch::find_mpirun_of(GetParam());
  const TestDirectory dir;
  ::setenv("LOCKSTEP_MPIRUN", mpirun->name.c_str(), 1);
  const ToolsEnd ended =
      run_bench(dir, {"--ops", "all_reduce,all_to_all,gather,send", "--backends", "shm,mpi,mpi-raw",
                      "--sizes", "64,3000", "--json", dir / "rows.json"});
  ::unsetenv("LOCKSTEP_MPIRUN");
  ASSERT_TRUE(ended.status.ok()) << ended.err;
  const auto rows = nlohmann::json::parse(dir.read("rows.json"));
  EXPECT_EQ(rows.size(), 3u * 4 * 2);
  expect_rows(rows, {"shm", "mpi", "mpi-raw"});
  for (const auto& row : rows) {
    const std::string library = row.at("library");
    if (row.at("backend") == "shm")
      EXPECT_EQ(library, "");
    else
      EXPECT_EQ(launch::family_of_version(library), GetParam()) << library;
  }
  EXPECT_NE(ended.out.find("mpi, mpi-raw: " + rows.back().at("library").get<std::string>()),
            std::string::npos)
      << ended.out;
}

TEST(BenchCollectives, PlainCopiesAreALimitBesideTheBackends) {
  const TestDirectory dir;
  const ToolsEnd ended = run_bench(
      dir, {"--ops", "all_reduce,broadcast,all_gather,reduce_scatter,all_to_all,gather",
            "--backends", "copies,shm", "--sizes", "64,100K", "--json", dir / "rows.json"});
  ASSERT_TRUE(ended.status.ok()) << ended.err;
  const auto rows = nlohmann::json::parse(dir.read("rows.json"));
  expect_rows(rows, {"copies", "shm"});
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(),
                          [](const auto& row) { return row.at("backend") == "copies"; }),
            5 * 2);
  EXPECT_NE(ended.err.find("left out: the copies of gather are not measured"), std::string::npos)
      << ended.err;
}

TEST(BenchCollectives, SeveralNumbersOfRanksMakeOneTable) {
  const TestDirectory dir;
  const ToolsEnd ended = run_bench(dir, {"--backends", "shm,gloo", "--sizes", "64", "--nproc",
                                         "1,2,3", "--json", dir / "rows.json"});
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
    const ToolsEnd ended = run_bench(dir, arguments);
    EXPECT_EQ(ended.status.exit_code, 2) << ended.err;
    EXPECT_NE(ended.err.find(word), std::string::npos) << ended.err;
  }
}

}  // namespace
}  // namespace lockstep::inline v0::engine::bench_mp_test
