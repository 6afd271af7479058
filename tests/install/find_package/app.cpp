#if __has_include(<lockstep/lockstep.h>)
#include <ATen/ops/ones.h>
#include <lockstep/lockstep.h>

#include <cstdio>

int main() {
  auto comm = lockstep::init();  // alone
  auto tensor = at::ones({3});
  comm.all_reduce(tensor);
  std::printf("rank %d of %d, sum %g\n", comm.rank(), comm.size(), tensor.sum().item<double>());
  return tensor.sum().item<double>() == 3 ? 0 : 1;
}
#else
#include <lockstep/core/env.h>

int main() {
  return lockstep::parse_int("42") == 42 ? 0 : 1;
}
#endif
