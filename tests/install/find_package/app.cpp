#include <ATen/ops/full.h>
#include <lockstep/lockstep.h>
#include <lockstep/testing/thread_ranks.h>

#include <atomic>
#include <cstdio>

int main() {
  auto comm = lockstep::init();  // alone
  auto tensor = at::full({3}, 1.0);
  comm.all_reduce(tensor);
  std::printf("rank %d of %d, sum %g\n", comm.rank(), comm.size(), tensor.sum().item<double>());

  std::atomic<int> right = 0;
  lockstep::testing::run_threads(2, [&](lockstep::Communicator& ranks) {
    auto mine = at::full({1}, ranks.rank() + 1.0);
    ranks.all_reduce(mine);
    right += mine.item<double>() == 3;
  });
  std::printf("of 2 threads as ranks, %d have the sum\n", right.load());
  return tensor.sum().item<double>() == 3 && right == 2 ? 0 : 1;
}
