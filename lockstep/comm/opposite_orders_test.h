// Two groups in which ranks wait in opposite orders, for the tests of every backend.
#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

// Every rank of `comm` calls the operations of two groups of all ranks in the same order, and waits
// for them in an order that depends on its rank. The sizes take different paths through an engine.
inline void wait_in_opposite_orders(Communicator& comm) {
  Communicator a = comm.duplicate(), b = comm.duplicate();
  const bool first_a = comm.rank() % 2 == 0;
  const double all = comm.size();
  for (const int64_t numel : {int64_t{10}, int64_t{40'000}, int64_t{2'000'000}}) {
    for (int turn = 0; turn < 3; ++turn) {
      const at::Tensor on_a = at::ones({numel}), on_b = at::ones({numel});
      Work work_a = a.iall_reduce(on_a), work_b = b.iall_reduce(on_b);
      if (first_a) work_a.wait();
      work_b.wait();
      work_a.wait();
      EXPECT_EQ(on_a[numel - 1].item<double>(), all) << numel;
      EXPECT_EQ(on_b[numel - 1].item<double>(), all) << numel;
      // One rank blocks in b while others wait for its pending operations in a.
      const at::Tensor under_way = at::ones({numel}), blocking = at::ones({numel});
      Work work = a.iall_reduce(under_way);
      if (!first_a) work.wait();
      b.all_reduce(blocking);
      work.wait();
      EXPECT_EQ(under_way[0].item<double>() + blocking[0].item<double>(), 2 * all) << numel;
      // A message, while the other ranks need this rank in a.
      if (comm.size() < 2 || comm.rank() > 1) continue;
      const int peer = 1 - comm.rank();
      const at::Tensor out = at::full({numel}, comm.rank() + 3.0), in = at::ones({numel});
      Work received = a.irecv(in, peer, turn);
      Work sent = a.isend(out, peer, turn);
      if (first_a) {
        sent.wait();
        b.send(out, peer, turn);
        b.recv(in, peer, turn);
      } else {
        const at::Tensor other = at::ones({numel});
        b.recv(other, peer, turn);
        b.send(other, peer, turn);
        sent.wait();
      }
      received.wait();
    }
  }
}

// Every rank of `comm`, at least three, calls operations of two groups in orders that differ, so
// that they can never complete. Returns the error that the rank gets. `a` is the group of all
// ranks, `b` that of the first two.
inline std::string error_of_different_orders(Communicator& a, std::optional<Communicator>& b) {
  a.barrier();
  if (b) b->barrier();
  try {
    if (a.rank() == 1) b->barrier();
    a.all_reduce(at::ones({5}));
    if (a.rank() == 0) b->barrier();
  } catch (const Mismatch& error) {
    return error.what();
  }
  return "no Mismatch";
}

inline auto names_different_orders() {
  using ::testing::HasSubstr;
  return ::testing::AllOf(HasSubstr("ranks wait for each other in different groups"),
                          HasSubstr("is in #2 barrier"), HasSubstr("opposite_orders_test.h"),
                          HasSubstr("is in #2 all_reduce sum float32 x 5"),
                          HasSubstr("of the group of ranks 0, 1; "));
}

inline void call_in_different_orders(Communicator& comm) {
  Communicator a = comm.duplicate();
  std::optional<Communicator> b = comm.subgroup({0, 1});
  const std::string error = error_of_different_orders(a, b);
  comm.barrier();  // errors name a rank that has left a group differently
  EXPECT_THAT(error, names_different_orders());
}

}  // namespace lockstep::inline v0
