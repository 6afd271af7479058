#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/errors.h"
#include "lockstep/testing/bitwise_sum.h"
#include "lockstep/testing/exact.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::symmetric_mp_test {
namespace {

int64_t descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

int64_t mappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
}

std::vector<at::Tensor> all_inputs(const Communicator& comm, int64_t count, at::ScalarType dtype) {
  std::vector<at::Tensor> inputs;
  for (int r = 0; r < comm.size(); ++r) inputs.push_back(testing::exact_input(r, count, dtype));
  return inputs;
}

at::Tensor symmetric_copy(Communicator& comm, const at::Tensor& tensor) {
  return comm.symmetric_empty(tensor.sizes(), tensor.scalar_type()).copy_(tensor);
}

TEST(Symmetric, EveryOperationWorksOnIt) {
  testing::expect_ranks(3, [](Communicator& comm) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kBool}) {
      for (const int64_t count : {3, 300, 30'000, 300'000}) {
        const std::vector<at::Tensor> inputs = all_inputs(comm, count, dtype);
        const at::Tensor mine = symmetric_copy(comm, inputs[comm.rank()]);
        comm.all_reduce(mine);
        EXPECT_TRUE(at::equal(mine, testing::exact_reduction(inputs, ReduceOp::kSum)));
        mine.copy_(inputs[comm.rank()]);
        EXPECT_TRUE(at::equal(comm.all_gather(mine), at::cat(inputs)));
        const at::Tensor part = comm.reduce_scatter(mine);
        EXPECT_TRUE(at::equal(
            part,
            testing::exact_reduction(inputs, ReduceOp::kSum).chunk(comm.size())[comm.rank()]));
        std::vector<at::Tensor> sent;
        for (const at::Tensor& input : inputs)
          sent.push_back(input.chunk(comm.size())[comm.rank()]);
        EXPECT_TRUE(at::equal(comm.all_to_all(mine), at::cat(sent)));
        comm.reduce(mine, 1);
        if (comm.rank() == 1) {
          EXPECT_TRUE(at::equal(mine, testing::exact_reduction(inputs, ReduceOp::kSum)));
        }
        mine.copy_(inputs[comm.rank()]);
        comm.broadcast(mine, 2);
        EXPECT_TRUE(at::equal(mine, inputs[2]));
      }
    }
  });
}

// Facts that only one rank knows must not decide the data's path.
TEST(Symmetric, RanksMayMixItWithOrdinaryTensors) {
  testing::expect_ranks(3, [](Communicator& comm) {
    for (const int64_t count : {300, 2'000, 5'000, 100'000}) {
      const std::vector<at::Tensor> inputs = all_inputs(comm, count, at::kFloat);
      const at::Tensor shared = symmetric_copy(comm, inputs[comm.rank()]);
      for (int odd = 0; odd < comm.size(); ++odd) {
        const at::Tensor mine = comm.rank() == odd ? inputs[comm.rank()].clone() : shared;
        mine.copy_(inputs[comm.rank()]);
        comm.all_reduce(mine);
        EXPECT_TRUE(at::equal(mine, testing::exact_reduction(inputs, ReduceOp::kSum)));
        mine.copy_(inputs[comm.rank()]);
        EXPECT_TRUE(at::equal(comm.all_gather(mine), at::cat(inputs)));
      }
    }
  });
}

TEST(Symmetric, SlicesLieWhereTheyLie) {
  testing::expect_ranks(2, [](Communicator& comm) {
    const at::Tensor whole = comm.symmetric_empty({1000, 64}, at::kFloat);
    whole.fill_(7.0f);
    // The ranks even use different offsets.
    const at::Tensor slice = whole.narrow(0, 100 + 300 * comm.rank(), 200);
    slice.fill_(static_cast<float>(comm.rank() + 1));
    comm.all_reduce(slice);
    EXPECT_TRUE(at::equal(slice, at::full({200, 64}, 3.0f)));
    EXPECT_EQ(whole.sum().item<float>(), 7.0f * 800 * 64 + 3.0f * 200 * 64);
  });
}

TEST(Symmetric, IsGivenBackAndOutlivesItsGroup) {
  testing::expect_ranks(2, [](Communicator& comm) {
    {
      const at::Tensor first = comm.symmetric_empty({1'000'000}, at::kFloat);
    }
    comm.barrier();
    const int64_t fds = descriptors();
    {
      const at::Tensor again = comm.symmetric_empty({1'000'000}, at::kFloat);
    }
    comm.barrier();
    const int64_t maps = mappings();
    for (int i = 0; i < 50; ++i) {
      const at::Tensor tensor = comm.symmetric_empty({100'000}, at::kFloat);
      tensor.fill_(1.0f);
      comm.all_reduce(tensor);
    }
    comm.barrier();
    {
      const at::Tensor last = comm.symmetric_empty({1}, at::kFloat);
    }
    EXPECT_EQ(descriptors(), fds);
    EXPECT_LE(mappings(), maps + 8);

    at::Tensor kept;
    {
      Communicator other = comm.duplicate();
      kept = other.symmetric_empty({1000}, at::kFloat);
      kept.fill_(5.0f);
      other.all_reduce(kept);
    }
    EXPECT_TRUE(at::equal(kept, at::full({1000}, 10.0f)));
    kept.add_(1.0f);
    comm.all_reduce(kept);  // this group treats it as an ordinary tensor
    EXPECT_TRUE(at::equal(kept, at::full({1000}, 22.0f)));
  });
}

TEST(Symmetric, RanksThatAskForDifferentSizesAreTold) {
  testing::expect_ranks(2, [](Communicator& comm) {
    try {
      const at::Tensor tensor = comm.symmetric_empty({1000 + comm.rank()}, at::kFloat);
      ADD_FAILURE() << "no Mismatch";
    } catch (const Mismatch& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("symmetric_empty, 4000 bytes"), std::string::npos) << text;
      EXPECT_NE(text.find("symmetric_empty, 4004 bytes"), std::string::npos) << text;
    }
  });
}

// With huge and small pages; the results are as usual.
TEST(Symmetric, LongOrdinaryTensorsAgreeBitForBit) {
  testing::expect_ranks(2, [](Communicator& comm) {
    const int64_t count = 1'234'567;
    const at::Tensor values = at::arange(count, at::kFloat).mul(0.1 + 0.01 * comm.rank());
    const at::Tensor ordinary = values.clone();
    const at::Tensor symmetric = symmetric_copy(comm, values);
    comm.all_reduce(ordinary);
    comm.all_reduce(symmetric);
    EXPECT_TRUE(at::equal(ordinary, symmetric));
    const at::Tensor strided = values.view({1, count}).expand({2, count}).t();
    const at::Tensor copied = strided.clone();
    comm.all_reduce(copied);
    EXPECT_TRUE(at::equal(copied.select(1, 1), ordinary));
  });
}

TEST(Symmetric, WhatNoRankHasRoomForTakesNoRoom) {
  testing::expect_ranks(2, [](Communicator& comm) {
    for (int turn = 0; turn < 3; ++turn)
      EXPECT_THROW(comm.symmetric_empty({int64_t{1} << 62}, at::kByte), SystemError);
    const at::Tensor tensor = comm.symmetric_empty({30'000}, at::kFloat);
    tensor.fill_(1.0f);
    comm.all_reduce(tensor);
    EXPECT_TRUE(at::equal(tensor, at::full({30'000}, 2.0f)));
  });
}

// Through lines and slots, with and without dividing the additions, between processes.
TEST(Symmetric, OrdinaryReductionsRepeatBitForBit) {
  constexpr int kSize = 4;
  testing::expect_ranks(kSize,
                        [](Communicator& comm) {
                          for (const int64_t count : {5, 200, 2000, 5000, 50'000}) {
                            const testing::BitwiseSum sum(kSize, count);
                            for (int turn = 0; turn < 200; ++turn)
                              ASSERT_EQ(sum.check(comm), "") << "turn " << turn;
                          }
                        },
                        {.backend = "shm"});
}

}  // namespace
}  // namespace lockstep::inline v0::symmetric_mp_test
