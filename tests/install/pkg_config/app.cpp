#include <ATen/ops/full.h>
#include <lockstep/comm/init.h>

#include <cstdio>

int main() {
  auto comm = lockstep::init();
  auto tensor = at::full({3}, comm.rank() + 1.0);
  comm.all_reduce(tensor);
  if (comm.rank() == 0) std::printf("%d ranks, sum %g\n", comm.size(), tensor.sum().item<double>());
  return 0;
}
