// What the tests on fake CUDA stand on. Not a public header.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "lockstep/device/current.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"

namespace lockstep::inline v0::testing {

// Three devices; a test that ends with a race has failed.
class WithoutRaces : public ::testing::Test {
 protected:
  void SetUp() override {
    // Autograd's threads take the number over when they start, and the CPU's sums depend on it.
    at::set_num_threads(1);
    // What the test before has left unordered.
    for (const int device : {0, 1, 2}) torch::cuda::synchronize(device);
    cuda.take_races();
  }
  void TearDown() override {
    device::set_current(at::Device(at::kCUDA, 0));  // an init() may have chosen another one
    for (const Race& race : cuda.take_races()) ADD_FAILURE() << race.text();
  }

  FakeCuda& cuda = FakeCuda::install({.devices = 3});
};

}  // namespace lockstep::inline v0::testing
