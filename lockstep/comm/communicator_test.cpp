#include <gtest/gtest.h>
#include <ATen/ops/full.h>
#include "lockstep/testing/thread_ranks.h"
namespace lockstep { namespace {
TEST(Communicator, AllReduceAddsUp) {
  testing::run_threads(3, [](Communicator& comm) {
    at::Tensor t = at::full({1000}, comm.rank() + 1.0f);
    comm.all_reduce(t);
    EXPECT_TRUE(t.eq(6).all().item<bool>());
  });
}
}}
