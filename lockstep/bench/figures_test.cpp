#include "lockstep/bench/figures.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/bench/load.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::bench::figures_test {
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
  const BenchRow row = make_row({Op::kAllReduce, at::kFloat, 1'000'000, 4}, "shm", false,
                                {200, 100, 100, 100, 100}, 1);
  EXPECT_DOUBLE_EQ(row.p50_us, 100);
  EXPECT_DOUBLE_EQ(row.mean_us, 120);
  EXPECT_DOUBLE_EQ(row.p95_us, 180);
  EXPECT_DOUBLE_EQ(row.algbw_gbps, 10);
  EXPECT_DOUBLE_EQ(row.busbw_gbps, 15);
  EXPECT_EQ(row.operations, 5);
}

TEST(BenchFigures, RatiosAreToTheFirstBackendOfTheSameCase) {
  const BenchCase small{Op::kAllReduce, at::kFloat, 4, 2};
  const BenchCase large{Op::kAllReduce, at::kFloat, 1 << 20, 2};
  std::vector<BenchRow> rows = {make_row(small, "shm", false, {1, 1, 4}, 100),
                                make_row(small, "gloo", false, {8, 8, 8}, 100),
                                make_row(large, "shm", false, {10, 10, 90}, 1),
                                make_row(large, "gloo", false, {50, 40, 60}, 1)};
  compare_to_first(rows);
  EXPECT_DOUBLE_EQ(rows[0].times_first, 1);
  EXPECT_DOUBLE_EQ(rows[1].times_first, 8);
  EXPECT_DOUBLE_EQ(rows[2].times_first, 1);
  EXPECT_DOUBLE_EQ(rows[3].times_first, 5);
}

TEST(BenchFigures, FitsFindAlphaAndBeta) {
  std::vector<BenchRow> rows;
  for (const int64_t mib : {1, 4, 16, 64}) {
    const BenchCase c{Op::kBroadcast, at::kFloat, mib << 20, 2};
    rows.push_back(make_row(c, "shm", false, {3.0 + 50.0 * static_cast<double>(mib)}, 1));
  }
  const std::vector<BenchFit> fits = fit_rows(rows);
  ASSERT_EQ(fits.size(), 1u);
  EXPECT_NEAR(fits[0].alpha_us, 3, 1e-6);
  EXPECT_NEAR(fits[0].beta_us_per_mib, 50, 1e-6);
  rows.resize(1);
  EXPECT_TRUE(fit_rows(rows).empty());
}

TEST(BenchLoad, BusyIsEverythingButIdleAndWaiting) {
  EXPECT_DOUBLE_EQ(busy_seconds("cpu  100 20 30 5000 600 7 8 35 999 999", 100), 2.0);
  EXPECT_DOUBLE_EQ(busy_seconds("intr 1 2 3", 100), 0);
}

TEST(BenchFigures, JsonHasTheFieldsThatScriptsRead) {
  const nlohmann::ordered_json json =
      bench_json({make_row({Op::kAllReduce, at::kFloat, 4, 2}, "shm", true, {1}, 1)});
  ASSERT_EQ(json.size(), 1u);
  for (const char* field : {"op", "backend", "symmetric", "dtype", "nproc", "bytes", "mean_us",
                            "p50_us", "p95_us", "algbw_GBps", "busbw_GBps"}) {
    EXPECT_TRUE(json[0].contains(field)) << field;
  }
  EXPECT_EQ(json[0]["dtype"], "float32");
  EXPECT_EQ(json[0]["symmetric"], true);
}

TEST(BenchFigures, LibrariesAreNamedOnce) {
  std::vector<BenchRow> rows;
  for (const char* backend : {"shm", "mpi", "mpi-raw", "mpi"}) {
    rows.push_back(make_row({Op::kAllReduce, at::kFloat, 4, 2}, backend, false, {1}, 1));
    if (rows.back().backend != "shm") rows.back().library = "MPICH 4.0.2";
  }
  EXPECT_EQ(library_lines(rows), "mpi, mpi-raw: MPICH 4.0.2\n");
}

TEST(BenchFigures, RowsComeBackFromJson) {
  std::vector<BenchRow> rows = {
      make_row({Op::kAllReduce, at::kFloat, 4, 2}, "shm", true, {1, 2, 9}, 100),
      make_row({Op::kBarrier, at::kByte, 0, 4}, "gloo", false, {3.5}, 1)};
  rows[1].library = "MPICH 4.0.2";
  EXPECT_EQ(bench_json(read_bench_json(bench_json(rows))), bench_json(rows));
}

TEST(BenchFigures, SeveralNumbersOfRanks) {
  EXPECT_EQ(parse_nprocs("2,4"), (std::vector<int>{2, 4}));
  for (const char* bad : {"", "0", "2,,4", "2,x", "1025"})
    EXPECT_THROW(parse_nprocs(bad), InvalidArgument) << bad;
}

}  // namespace
}  // namespace lockstep::bench::figures_test
