// A random generator for each replica, so that dropout does not depend on how threads interleave.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "lockstep/hooks/thread_generator.h"

namespace lockstep::inline v0::data_parallel {

// The seeds of one forward. The first random operation of any replica draws a number from the
// default CPU generator, so torch::manual_seed() determines all, and a forward without random
// operations leaves that generator unchanged.
// Thread-safety: any thread.
class ForwardSeeds {
 public:
  uint64_t of(size_t replica);

 private:
  std::once_flag once_;
  uint64_t base_ = 0;
};

// While it lives, random operations of this thread that name no generator, dropout among them, use
// one of this replica's. It works for CPU tensors only: do not make it for replicas on other
// devices, which have their own generators.
class ReplicaRandom {
 public:
  ReplicaRandom(ForwardSeeds& seeds, size_t replica);
  ReplicaRandom(const ReplicaRandom&) = delete;
  ReplicaRandom& operator=(const ReplicaRandom&) = delete;

 private:
  std::optional<at::Generator> generator_;  // made by the first of them
  hooks::ThreadGenerator here_;
};

}  // namespace lockstep::inline v0::data_parallel
