// The figures of `lockstep bench collectives`: what an operation moves, statistics, tables. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/comm/types.h"

namespace lockstep::bench {

// One operation at one size. Elements are per rank; "whole" is what nccl-tests calls the size: the
// tensor of an all_reduce, broadcast, reduce or send; all parts together of the others. 0 for a
// barrier.
struct BenchCase {
  Op op = Op::kAllReduce;
  at::ScalarType dtype = at::kFloat;
  int64_t asked = 0;  // bytes, as the user gave them
  int nproc = 1;

  bool in_parts() const;        // every rank has one of nproc equal parts
  int64_t whole() const;        // elements: asked / width, at least one a part
  int64_t part() const;         // elements; whole() unless in_parts()
  int64_t whole_bytes() const;  // what is measured
};

// One line of the result.
struct BenchRow {
  Op op = Op::kAllReduce;
  std::string backend;
  bool symmetric = false;
  at::ScalarType dtype = at::kFloat;
  int nproc = 1;
  int64_t asked = 0;
  int64_t bytes = 0;
  int64_t operations = 0;  // timed
  double mean_us = 0;
  double p50_us = 0;
  double p95_us = 0;
  double algbw_gbps = 0;  // 10^9 bytes a second, from p50
  double busbw_gbps = 0;
  double times_first = 1;  // this row's p50 by that of the first backend on the same case

  double others_cpus = 0;  // processors' worth of work that other processes did meanwhile
  // Of the backend, where it is loaded at run time: "MPICH 4.0.2 (libmpich.so.12)".
  std::string library = {};
};
// Up to this size an operation is shorter than what disturbs it, and ranks alternate fast and slow
// ones: a sample is the mean of a batch.
inline constexpr int64_t kBatchedBytes = 1024;

// A row from the samples of one backend. Each sample is the time of one operation in microseconds
// (mean of `batch` operations), of the rank that took longest. Requires a sample.
BenchRow make_row(const BenchCase& c, const std::string& backend, bool symmetric,
                  std::vector<double> samples_us, int64_t batch);

// bus bandwidth / algorithm bandwidth, as nccl-tests defines it (doc/PERFORMANCE.md there).
double bus_factor(Op op, int nproc);

// Sets times_first: rows of one case stand together.
void compare_to_first(std::vector<BenchRow>& rows);

// Time of an operation as alpha + beta * bytes, fitted over sizes so that the sum of squared
// relative errors is smallest. For the planner.
struct BenchFit {
  Op op = Op::kAllReduce;
  std::string backend;
  bool symmetric = false;
  at::ScalarType dtype = at::kFloat;
  int nproc = 1;
  double alpha_us = 0;
  double beta_us_per_mib = 0;
};
// One fit an op x backend x dtype that was measured at two sizes or more.
std::vector<BenchFit> fit_rows(const std::vector<BenchRow>& rows);

// "4,1K,64K,1M": K, M and G are powers of 1024. Throws InvalidArgument.
std::vector<int64_t> parse_byte_sizes(const std::string& text);
std::string byte_text(int64_t bytes);  // "64 KiB"
// Names with commas. Throw InvalidArgument that names the choices.
std::vector<Op> parse_ops(const std::string& text);
std::vector<at::ScalarType> parse_dtypes(const std::string& text);
std::vector<int> parse_nprocs(const std::string& text);
std::vector<std::string> parse_names(const std::string& option, const std::string& text);

std::string bench_table(const std::vector<BenchRow>& rows);
// A line for each library that measured backends have loaded: "mpi, mpi-raw: MPICH 4.0.2 (...)".
std::string library_lines(const std::vector<BenchRow>& rows);
std::string fit_table(const std::vector<BenchFit>& fits);
std::string bench_svg(const std::vector<BenchRow>& rows);
nlohmann::ordered_json bench_json(const std::vector<BenchRow>& rows);
std::vector<BenchRow> read_bench_json(const nlohmann::json& json);  // of bench_json()
nlohmann::ordered_json fit_json(const std::vector<BenchFit>& fits);

}  // namespace lockstep::bench
