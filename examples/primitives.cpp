// The five communication primitives, each with what it must give. Runs on 4 ranks of its own when
// started by hand, and on any number under a launcher.
#include <ATen/ops/full.h>

#include <cstdio>
#include <source_location>
#include <stdexcept>
#include <string>

#include "on_ranks.h"

namespace {

using lockstep::Communicator;

// assert() that stays in a release build.
void check(bool ok, std::source_location site = std::source_location::current()) {
  if (!ok) throw std::runtime_error(std::string(site.function_name()) + " gave a wrong result");
}

// This rank's number, 5 x 5 times for each of `parts`. With 4 ranks: 0, 1, 2, 3.
at::Tensor mine(const Communicator& comm, int64_t parts = 1) {
  return at::full({parts * 5, 5}, comm.rank(), at::TensorOptions(comm.device()).dtype(at::kFloat));
}

bool all_equal(const at::Tensor& tensor, double value) {
  return tensor.eq(value).all().item<bool>();
}

double sum_of_ranks(const Communicator& comm) {
  return comm.size() * (comm.size() - 1) / 2.0;
}

void all_reduce(Communicator& comm) {
  const auto t = mine(comm);
  comm.all_reduce(t);  // 0 + 1 + 2 + 3
  check(all_equal(t, sum_of_ranks(comm)));
}

void reduce(Communicator& comm) {
  const auto t = mine(comm);
  comm.reduce(t, 0);
  // The others' tensors stay as they were, on every backend.
  check(all_equal(t, comm.rank() == 0 ? sum_of_ranks(comm) : comm.rank()));
}

void broadcast(Communicator& comm) {
  const auto t = mine(comm);
  const int last = comm.size() - 1;
  comm.broadcast(t, last);
  check(all_equal(t, last));
}

void all_gather(Communicator& comm) {
  const auto gathered = comm.all_gather(mine(comm));
  check(gathered.size(0) == int64_t{5} * comm.size() && gathered.size(1) == 5);  // 20 x 5
  check(gathered.mean().item<double>() == sum_of_ranks(comm) / comm.size());
}

void reduce_scatter(Communicator& comm) {
  const auto part = comm.reduce_scatter(mine(comm, comm.size()));
  check(part.sizes() == at::IntArrayRef({5, 5}));
  check(all_equal(part, sum_of_ranks(comm)));
}

}  // namespace

int main() {
  return on_ranks(4, [](Communicator& comm) {
    all_reduce(comm);
    reduce(comm);
    broadcast(comm);
    all_gather(comm);
    reduce_scatter(comm);
    comm.barrier();  // past this point all ranks have checked theirs
    if (comm.rank() == 0) std::printf("five primitives on %d ranks: as expected\n", comm.size());
  });
}
