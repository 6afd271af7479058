// lockstep bench collectives
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cli/engine/bench_figures.h"
#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

struct BenchArguments {
  std::vector<Op> ops;
  std::vector<std::string> backends;  // as for init(), and "mpi-raw"
  std::vector<int64_t> sizes;         // bytes
  std::vector<at::ScalarType> dtypes;
  std::vector<int> nprocs = {2};
  bool symmetric = false;  // also with symmetric tensors, where a backend has them
  int rounds = 9;
  double block_ms = 40;
  std::string json;
  std::string fit;
  std::string svg;
  std::string rows_to;  // a rank writes its rows here instead of reporting them
};
// Throws HelpShown, InvalidArgument.
BenchArguments parse_bench_arguments(const Arguments& arguments);

// Run by hand it checks the arguments and starts the ranks, by mpirun if mpi is among the backends,
// once for each number of them; run by a launcher it is a rank.
int bench_collectives(const Arguments& arguments);

}  // namespace lockstep::engine
