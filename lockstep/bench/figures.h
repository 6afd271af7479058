// The figures of `lockstep bench collectives`: what an operation moves, statistics, tables. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/bench/rows.h"
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

// Up to this size an operation is shorter than what disturbs it, and ranks alternate fast and slow
// ones: a sample is the mean of a batch.
inline constexpr int64_t kBatchedBytes = 1024;

// A row from the samples of one backend. Each sample is the time of one operation in microseconds
// (mean of `batch` operations), of the rank that took longest. Its figures:
//   op, backend, symmetric, dtype, nproc
//   bytes                   whole_bytes(); size: as asked for
//   mean_us, p50_us, p95_us
//   algbw_GBps, busbw_GBps  10^9 bytes a second, from p50_us
//   times_first             p50_us by that of the case's first backend: compare_to_first()
//   operations              timed
//   others_cpus             processors' worth of work of other processes meanwhile; 0 here
//   library                 of a backend that is loaded at run time: "MPICH 4.0.2"; "" here
// Requires: a sample.
Row make_row(const BenchCase& c, const std::string& backend, bool symmetric,
             const std::vector<double>& samples_us, int64_t batch);

// bus bandwidth / algorithm bandwidth, as nccl-tests defines it (doc/PERFORMANCE.md there).
double bus_factor(Op op, int nproc);

// Sets times_first: rows of one case stand together.
void compare_to_first(std::vector<Row>& rows);

// Time of an operation as alpha_us + beta_us_per_MiB * MiB, fitted over sizes so that the sum of
// squared relative errors is smallest; for the planner. One fit an op x backend x dtype that was
// measured at two sizes or more.
std::vector<Row> fit_rows(const std::vector<Row>& rows);

// "4,1K,64K,1M": K, M and G are powers of 1024.
// Throws: InvalidArgument.
std::vector<int64_t> parse_byte_sizes(const std::string& text);
std::string byte_text(int64_t bytes);  // "64 KiB"
// Names with commas. Throw InvalidArgument that names the choices.
std::vector<Op> parse_ops(const std::string& text);
std::vector<at::ScalarType> parse_dtypes(const std::string& text);

std::string bench_table(const std::vector<Row>& rows);
// A line for each library that measured backends have loaded: "mpi, mpi-raw: MPICH 4.0.2 (...)".
std::string library_lines(const std::vector<Row>& rows);
std::string fit_table(const std::vector<Row>& fits);
std::string bench_svg(const std::vector<Row>& rows);

}  // namespace lockstep::bench
