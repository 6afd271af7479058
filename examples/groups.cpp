// Groups of ranks, a collective that autograd differentiates, objects, and lists of tensors. Runs
// on 4 ranks of its own when started by hand, and on any number under a launcher.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <lockstep/comm/coalesced.h>
#include <lockstep/comm/functional.h>
#include <lockstep/comm/objects.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#include "on_ranks.h"

namespace {

using lockstep::Communicator;

// assert() that stays in a release build.
void check(bool ok, std::source_location site = std::source_location::current()) {
  if (!ok) throw std::runtime_error(std::string(site.function_name()) + " gave a wrong result");
}

// The ranks as a grid of two columns: sums along the rows, then along the columns.
void grid(Communicator& comm) {
  Communicator row = *comm.split(comm.rank() / 2);
  Communicator column = *comm.split(comm.rank() % 2);
  const auto t = at::full({3}, comm.rank(), at::device(comm.device()).dtype(at::kDouble));
  row.all_reduce(t);
  column.all_reduce(t);
  // The first column meets every row, so it has the sum of all ranks.
  const double sum = comm.size() * (comm.size() - 1) / 2.0;
  if (comm.rank() % 2 == 0) check(t[0].item<double>() == sum);
}

// Only the even ranks; the others go on at once.
void even_ranks(Communicator& comm) {
  std::vector<int> even;
  for (int r = 0; r < comm.size(); r += 2) even.push_back(r);
  if (auto group = comm.subgroup(even)) {
    check(group->rank() == comm.rank() / 2);
    group->barrier();
  }
}

// Every rank's loss depends on every rank's x: backward() brings the gradients home.
void differentiate(Communicator& comm) {
  const auto x = at::full({3}, comm.rank() + 1.0, comm.device()).requires_grad_(true);
  const auto mean = lockstep::functional::all_reduce(comm, x, lockstep::ReduceOp::kAvg);
  mean.sum().backward();
  check(x.grad().eq(1.0).all().item<bool>());  // size() losses, each a 1/size() of x
}

void objects(Communicator& comm) {
  const auto all = lockstep::all_gather_object(comm, {{"rank", comm.rank()}, {"name", "worker"}});
  check(all.size() == static_cast<size_t>(comm.size()) && all.back()["rank"] == comm.size() - 1);
}

// Three tensors, two dtypes: two operations.
void lists(Communicator& comm) {
  const std::vector<at::Tensor> list = {at::ones({2, 2}), at::ones({5}, at::kLong), at::ones({})};
  lockstep::all_reduce_coalesced(comm, list);
  check(list[1][4].item<int64_t>() == comm.size() && list[2].item<double>() == comm.size());
}

}  // namespace

int main() {
  return on_ranks(4, [](Communicator& comm) {
    grid(comm);
    even_ranks(comm);
    differentiate(comm);
    objects(comm);
    lists(comm);
    comm.barrier();  // past this point all ranks have checked theirs
    if (comm.rank() == 0) std::printf("groups of %d ranks: as expected\n", comm.size());
  });
}
