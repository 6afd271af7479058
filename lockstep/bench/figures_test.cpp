#include "lockstep/bench/figures.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/bench/load.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::bench::figures_test {
namespace {

TEST(BenchFigures, SizesAreBytesWithBinaryUnits) {
  EXPECT_EQ(parse_byte_sizes("4,1K,64k,25M,1G"),
            (std::vector<int64_t>{4, 1024, 65536, 26214400, 1073741824}));
  for (const char* bad : {"", "4,,8", "0", "-1", "4X", "K", "100G", "1.5M"})
    EXPECT_THROW(parse_byte_sizes(bad), InvalidArgument) << bad;
  EXPECT_EQ(byte_text(65536), "64 KiB");
  EXPECT_EQ(byte_text(26214400), "25 MiB");
  EXPECT_EQ(byte_text(4), "4 B");
}

TEST(BenchFigures, UnknownNamesAreToldTheChoices) {
  EXPECT_EQ(parse_ops("all_reduce,send"), (std::vector<Op>{Op::kAllReduce, Op::kSend}));
  EXPECT_EQ(parse_dtypes("bfloat16"), (std::vector<at::ScalarType>{at::kBFloat16}));
  try {
    parse_ops("allreduce");
    ADD_FAILURE() << "no exception";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("all_reduce, broadcast"), std::string::npos)
        << error.what();
  }
}

TEST(BenchFigures, PartsAreEqualAndHaveAnElement) {
  const BenchCase whole{Op::kAllReduce, at::kFloat, 1000, 3};
  EXPECT_EQ(whole.part(), 250);
  EXPECT_EQ(whole.whole_bytes(), 1000);
  const BenchCase parts{Op::kAllGather, at::kFloat, 1000, 3};
  EXPECT_EQ(parts.part(), 83);
  EXPECT_EQ(parts.whole(), 249);
  EXPECT_EQ(parts.whole_bytes(), 996);
  const BenchCase tiny{Op::kReduceScatter, at::kDouble, 4, 2};
  EXPECT_EQ(tiny.part(), 1);
  EXPECT_EQ(tiny.whole_bytes(), 16);
  EXPECT_EQ((BenchCase{Op::kBarrier, at::kByte, 0, 2}.whole_bytes()), 0);
}

TEST(BenchFigures, BandwidthsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kSend, 4), 1);
  const Row row = make_row({Op::kAllReduce, at::kFloat, 1'000'000, 4}, "shm", false,
                           {200, 100, 100, 100, 100}, 1);
  EXPECT_DOUBLE_EQ(row.at("p50_us"), 100);
  EXPECT_DOUBLE_EQ(row.at("mean_us"), 120);
  EXPECT_DOUBLE_EQ(row.at("p95_us"), 180);
  EXPECT_DOUBLE_EQ(row.at("algbw_GBps"), 10);
  EXPECT_DOUBLE_EQ(row.at("busbw_GBps"), 15);
  EXPECT_EQ(row.at("operations"), 5);
}

TEST(BenchFigures, RatiosAreToTheFirstBackendOfTheSameCase) {
  const BenchCase small{Op::kAllReduce, at::kFloat, 4, 2};
  const BenchCase large{Op::kAllReduce, at::kFloat, 1 << 20, 2};
  std::vector<Row> rows = {make_row(small, "shm", false, {1, 1, 4}, 100),
                           make_row(small, "gloo", false, {8, 8, 8}, 100),
                           make_row(large, "shm", false, {10, 10, 90}, 1),
                           make_row(large, "gloo", false, {50, 40, 60}, 1)};
  compare_to_first(rows);
  EXPECT_DOUBLE_EQ(rows[0].at("times_first"), 1);
  EXPECT_DOUBLE_EQ(rows[1].at("times_first"), 8);
  EXPECT_DOUBLE_EQ(rows[2].at("times_first"), 1);
  EXPECT_DOUBLE_EQ(rows[3].at("times_first"), 5);
}

TEST(BenchFigures, FitsFindAlphaAndBeta) {
  std::vector<Row> rows;
  for (const int64_t mib : {1, 4, 16, 64}) {
    const BenchCase c{Op::kBroadcast, at::kFloat, mib << 20, 2};
    rows.push_back(make_row(c, "shm", false, {3.0 + 50.0 * static_cast<double>(mib)}, 1));
  }
  const std::vector<Row> fits = fit_rows(rows);
  ASSERT_EQ(fits.size(), 1u);
  EXPECT_NEAR(fits[0].at("alpha_us").get<double>(), 3, 1e-6);
  EXPECT_NEAR(fits[0].at("beta_us_per_MiB").get<double>(), 50, 1e-6);
  rows.resize(1);
  EXPECT_TRUE(fit_rows(rows).empty());
}

TEST(BenchLoad, BusyIsEverythingButIdleAndWaiting) {
  EXPECT_DOUBLE_EQ(busy_seconds("cpu  100 20 30 5000 600 7 8 35 999 999", 100), 2.0);
  EXPECT_DOUBLE_EQ(busy_seconds("intr 1 2 3", 100), 0);
}

TEST(BenchFigures, RowsHaveTheFiguresThatScriptsRead) {
  const Row row = make_row({Op::kAllReduce, at::kFloat, 4, 2}, "shm", true, {1}, 1);
  for (const char* field : {"op", "backend", "symmetric", "dtype", "nproc", "bytes", "mean_us",
                            "p50_us", "p95_us", "algbw_GBps", "busbw_GBps"}) {
    EXPECT_TRUE(row.contains(field)) << field;
  }
  EXPECT_EQ(row.at("dtype"), "float32");
  EXPECT_EQ(row.at("symmetric"), true);
}

TEST(BenchFigures, ACaseIsNamedOnceInTheTable) {
  const BenchCase c{Op::kAllReduce, at::kFloat, 4096, 2};
  std::vector<Row> rows{make_row(c, "shm", true, {2}, 1), make_row(c, "gloo", false, {8.25}, 1)};
  compare_to_first(rows);
  const std::string table = bench_table(rows);
  EXPECT_NE(table.find("times shm symmetric\n"), std::string::npos) << table;
  EXPECT_NE(table.find("    2  all_reduce  float32  4 KiB  shm symmetric     2.00"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("\n                                   gloo  "), std::string::npos) << table;
}

TEST(BenchFigures, LibrariesAreNamedOnce) {
  std::vector<Row> rows;
  for (const char* backend : {"shm", "mpi", "mpi-raw", "mpi"}) {
    rows.push_back(make_row({Op::kAllReduce, at::kFloat, 4, 2}, backend, false, {1}, 1));
    if (backend != std::string("shm")) rows.back()["library"] = "MPICH 4.0.2";
  }
  EXPECT_EQ(library_lines(rows), "mpi, mpi-raw: MPICH 4.0.2\n");
}

TEST(BenchFigures, SeveralNumbersOfRanks) {
  EXPECT_EQ(parse_rank_counts("--nproc", "2,4"), (std::vector<int64_t>{2, 4}));
  for (const char* bad : {"", "0", "2,,4", "2,x", "1.5", "-1", "1025"})
    EXPECT_THROW(parse_rank_counts("--nproc", bad), InvalidArgument) << bad;
}

}  // namespace
}  // namespace lockstep::inline v0::bench::figures_test
