// The figures of `lockstep bench collectives`: moved bytes, statistics and tables. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/bench/rows.h"
#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0::bench {

// One operation at one size. Elements are counted per rank. "Whole" is the size as nccl-tests
// defines it: the tensor of an all_reduce, broadcast, reduce or send, and all parts together of the
// others. It is 0 for a barrier.
struct BenchCase {
  Op op = Op::kAllReduce;
  at::ScalarType dtype = at::kFloat;
  int64_t asked = 0;  // bytes, as the user gave them
  int nproc = 1;

  bool in_parts() const;        // every rank has one of nproc equal parts
  int64_t whole() const;        // elements: asked / width, at least one a part
  int64_t part() const;         // elements; whole() unless in_parts()
  int64_t whole_bytes() const;  // the measured size
};

// Up to this size an operation is shorter than the disturbances, and ranks alternate fast and slow
// ones; a sample is therefore the mean of a batch.
inline constexpr int64_t kBatchedBytes = 1024;

// Makes a row from the samples of one backend. Each sample is the time of one operation in
// microseconds (the mean of `batch` operations) on the rank that took longest. The figures:
//   op, backend, symmetric, dtype, nproc
//   bytes                   whole_bytes(); size: as asked for
//   mean_us, p50_us, p95_us
//   algbw_GBps, busbw_GBps  10^9 bytes a second, from p50_us
//   times_first             p50_us by that of the case's first backend: compare_to_first()
//   operations              timed
//   others_cpus             processors' worth of work of other processes meanwhile; 0 here
//   library                 the library that a backend loads at run time: "MPICH 4.0.2"; "" here
// Requires: a sample.
Row make_row(const BenchCase& c, const std::string& backend, bool symmetric,
             const std::vector<double>& samples_us, int64_t batch);

// The ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it (doc/PERFORMANCE.md
// there).
double bus_factor(Op op, int nproc);

// Sets times_first.
// Requires: rows of one case stand together.
void compare_to_first(std::vector<Row>& rows);

// Fits the time of an operation as alpha_us + beta_us_per_MiB * MiB over sizes, so that the sum of
// squared relative errors is smallest. The planner uses it. There is one fit for each operation,
// backend and dtype that was measured at two sizes or more.
std::vector<Row> fit_rows(const std::vector<Row>& rows);

// Parses "4,1K,64K,1M", where K, M and G are powers of 1024.
// Throws: InvalidArgument.
std::vector<int64_t> parse_byte_sizes(const std::string& text);
std::string byte_text(int64_t bytes);  // "64 KiB"
// Parse names with commas between them.
// Throws: InvalidArgument that names the choices.
std::vector<Op> parse_ops(const std::string& text);
std::vector<at::ScalarType> parse_dtypes(const std::string& text);

std::string bench_table(const std::vector<Row>& rows);
// Has a line for each library that measured backends have loaded: "mpi, mpi-raw: MPICH 4.0.2
// (...)".
std::string library_lines(const std::vector<Row>& rows);
std::string fit_table(const std::vector<Row>& fits);
std::string bench_svg(const std::vector<Row>& rows);

}  // namespace lockstep::inline v0::bench
