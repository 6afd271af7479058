// shared_empty(): memory that all ranks of a host share.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::shared_mp_test {
namespace {

using ::testing::HasSubstr;

// This process's proportional share of the communicators' memory, in bytes (proc(5), smaps).
double proportional_bytes() {
  std::ifstream maps("/proc/self/smaps");
  double kib = 0;
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ') && line.find(':') > line.find(' '))
      ours = line.find("memfd:lockstep-symmetric") != std::string::npos;
    if (ours && line.starts_with("Pss:")) kib += std::stod(line.substr(4));
  }
  return kib * 1024;
}

// The contents of the file behind that memory, independent of its mappings.
double file_bytes() {
  double bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat info{};
    if (target.find("memfd:lockstep-symmetric") == std::string::npos) continue;
    if (::stat(entry.path().c_str(), &info) == 0)
      bytes += 512.0 * static_cast<double>(info.st_blocks);
  }
  return bytes;
}

double sum_over_ranks(Communicator& comm, double mine) {
  const at::Tensor sum = at::full({1}, mine, at::kDouble);
  comm.all_reduce(sum);
  return sum.item<double>();
}

class Shared : public ::testing::TestWithParam<const char*> {};

TEST_P(Shared, WhatOneWritesTheOthersRead) {
  testing::expect_ranks(3,
                        [](Communicator& comm) {
                          constexpr int64_t kRows = 100'003;  // parts that end within pages
                          const at::Tensor all = comm.shared_empty({comm.size(), kRows}, at::kInt);
                          EXPECT_EQ(all.count_nonzero().item<int64_t>(), 0);
                          comm.barrier();
                          for (int turn = 1; turn <= 20; ++turn) {
                            all[comm.rank()].fill_(turn * 10 + comm.rank());
                            comm.barrier();
                            for (int r = 0; r < comm.size(); ++r)
                              EXPECT_TRUE(all[r].eq(turn * 10 + r).all().item<bool>())
                                  << "turn " << turn;
                            comm.barrier();
                          }
                        },
                        {.backend = GetParam()});
}

TEST_P(Shared, CostsItsBytesOnceAndGivesThemBack) {
  testing::expect_ranks(4,
                        [](Communicator& comm) {
                          constexpr int64_t kBytes = 64 << 20;
                          sum_over_ranks(comm, 0);  // the engine allocates the memory that it keeps
                          const double before = file_bytes();
                          {
                            const at::Tensor shared = comm.shared_empty({kBytes}, at::kByte);
                            comm.barrier();
                            const double held = sum_over_ranks(comm, proportional_bytes());
                            EXPECT_NEAR(held, static_cast<double>(kBytes),
                                        4e6);  // control pages, huge pages
                            EXPECT_LT(file_bytes() - before, kBytes + 4e6);
                            comm.barrier();
                          }
                          comm.barrier();
                          EXPECT_LE(file_bytes(), before + 4e6);
                          for (int i = 0; i < 50; ++i)
                            comm.shared_empty({1 << 20}, at::kByte).fill_(1);
                          comm.barrier();
                          EXPECT_LE(file_bytes(), before + 4e6);
                        },
                        {.backend = GetParam()});
}

TEST_P(Shared, OutlivesItsGroupAndLeavesSymmetricMemoryAlone) {
  testing::expect_ranks(2,
                        [](Communicator& comm) {
                          at::Tensor kept;
                          {
                            Communicator other = comm.duplicate();
                            kept = other.shared_empty({1000}, at::kFloat);
                            const at::Tensor symmetric = other.symmetric_empty({1000}, at::kFloat);
                            const at::Tensor again = other.shared_empty({1000}, at::kFloat);
                            symmetric.fill_(comm.rank() + 1);
                            if (comm.rank() == 0) again.fill_(7);
                            other.all_reduce(symmetric);
                            EXPECT_EQ(symmetric[999].item<float>(), 3);
                            EXPECT_EQ(again[999].item<float>(), 7);
                          }
                          if (comm.rank() == 1) kept.fill_(5);
                          comm.barrier();
                          EXPECT_EQ(kept[0].item<float>(), 5);
                          comm.barrier();
                        },
                        {.backend = GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Backends, Shared, ::testing::Values("shm", "hierarchical"),
                         [](const auto& param) { return std::string(param.param); });

TEST(SharedRefusals, AreTheSameOnAllRanks) {
  testing::expect_ranks(2,
                        [](Communicator& comm) {
                          for (int turn = 0; turn < 2; ++turn)
                            EXPECT_THROW(comm.shared_empty({int64_t{1} << 62}, at::kByte),
                                         SystemError);
                          const at::Tensor tensor = comm.shared_empty({10}, at::kByte);
                          EXPECT_THAT(message_of<Mismatch>([&] {
                                        if (comm.rank() == 0)
                                          comm.shared_empty({10}, at::kByte);
                                        else
                                          comm.symmetric_empty({10}, at::kByte);
                                      }),
                                      HasSubstr("symmetric_empty, 10 bytes"));
                        },
                        {.backend = "shm"});
  testing::expect_ranks(
      2,
      [](Communicator& comm) {
        EXPECT_FALSE(comm.capabilities().shared_memory);
        EXPECT_THAT(message_of<InvalidArgument>([&] { comm.shared_empty({10}, at::kByte); }),
                    HasSubstr("backend tcp has no memory that ranks share"));
        comm.barrier();  // still usable
      },
      {.backend = "tcp"});
}

}  // namespace
}  // namespace lockstep::inline v0::shared_mp_test
