#include "lockstep/core/process_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>
#include <vector>

#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0 {
namespace {

uint64_t address_of(const void* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

class ProcessMemory : public ::testing::Test {
 protected:
  ProcessMemory() { std::iota(source_.begin(), source_.end(), 1); }
  void SetUp() override {
    if (!read_memory(::getpid(), proof_, 0, nullptr, 0))
      GTEST_SKIP() << "this system forbids process_vm_readv";
  }
  size_t bytes() const { return source_.size() * sizeof(int); }

  std::vector<int> source_ = std::vector<int>(100'000);
  std::vector<int> target_ = std::vector<int>(100'000);
  const uint64_t word_ = 0x1234567890abcdef;
  const MemoryProof proof_{address_of(&word_), word_};
};

TEST_F(ProcessMemory, IsReadWithAndWithoutAProof) {
  ASSERT_TRUE(read_memory(::getpid(), proof_, address_of(source_.data()), target_.data(), bytes()));
  EXPECT_EQ(target_, source_);
  target_.assign(target_.size(), 0);
  ASSERT_TRUE(read_memory(::getpid(), address_of(source_.data()), target_.data(), bytes()));
  EXPECT_EQ(target_, source_);
  ASSERT_TRUE(read_memory(::getpid(), 0, nullptr, 0));
}

TEST_F(ProcessMemory, IsWritten) {
  ASSERT_TRUE(write_memory(::getpid(), address_of(target_.data()), source_.data(), bytes()));
  EXPECT_EQ(target_, source_);
}

TEST_F(ProcessMemory, WhatFailsIsSaid) {
  const MemoryProof another{proof_.address, proof_.value + 1};
  EXPECT_FALSE(
      read_memory(::getpid(), another, address_of(source_.data()), target_.data(), bytes()));
  EXPECT_EQ(errno, 0) << "another process";
  EXPECT_FALSE(read_memory(::getpid(), proof_, 8, target_.data(), bytes()));
  EXPECT_EQ(errno, EFAULT);
  EXPECT_FALSE(read_memory(::getpid(), 8, target_.data(), bytes()));
  EXPECT_EQ(errno, EFAULT);

  SubprocessOptions options;
  options.command = {"true"};
  Subprocess child(options);
  const int64_t pid = child.pid();
  child.wait(Deadline::seconds(60));
  EXPECT_FALSE(read_memory(pid, proof_, address_of(source_.data()), target_.data(), bytes()));
  EXPECT_EQ(errno, ESRCH);
}

}  // namespace
}  // namespace lockstep::inline v0
