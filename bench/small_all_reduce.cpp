// all_reduce as a program meets it: the time of one call, its own cost included, after the buffer
// was rewritten and the ranks met at a barrier. bench/small_all_reduce.py starts it and its
// counterpart small_all_reduce_mpi.c, which does the same through Open MPI, in turn.
//
// Arguments: pairs of bytes and calls. Rank 0 prints a line for each pair and kind of tensor:
//   ordinary 1024 0.412      kind, bytes, mean microseconds over the calls and ranks
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "lockstep/comm/init.h"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

double mean_us(Communicator& comm, const at::Tensor& tensor, int calls) {
  auto* data = tensor.mutable_data_ptr<float>();
  const int64_t count = tensor.numel();
  Clock::duration spent{};
  for (int i = -calls / 10; i < calls; ++i) {
    const auto value = static_cast<float>(i % 7 + comm.rank());
    for (int64_t k = 0; k < count; ++k) data[k] = value;
    comm.barrier();
    const auto start = Clock::now();
    comm.all_reduce(tensor);
    const auto end = Clock::now();
    if (i >= 0) spent += end - start;
    const auto expected = static_cast<float>((i % 7) * comm.size() + comm.size() / 2);
    if (comm.size() == 2 && (data[0] != expected || data[count - 1] != expected)) {
      std::fprintf(stderr, "wrong sum in call %d\n", i);
      std::exit(1);
    }
  }
  const at::Tensor mean =
      at::full({1}, std::chrono::duration<double, std::micro>(spent).count() / calls, at::kDouble);
  comm.all_reduce(mean, ReduceOp::kAvg);
  return mean.item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  Communicator comm = init({.backend = "shm"});
  for (int i = 1; i + 1 < argc; i += 2) {
    const int64_t bytes = std::atoll(argv[i]);
    const int calls = std::atoi(argv[i + 1]);
    const double ordinary = mean_us(comm, at::empty({bytes / 4}, at::kFloat), calls);
    const double symmetric = mean_us(comm, comm.symmetric_empty({bytes / 4}, at::kFloat), calls);
    if (comm.rank() == 0)
      std::printf("ordinary %ld %.4f\nsymmetric %ld %.4f\n", bytes, ordinary, bytes, symmetric);
  }
  return 0;
}
