#include "lockstep/parallel/data_parallel/replica_random.h"

#include <ATen/CPUGeneratorImpl.h>

namespace lockstep::inline v0::data_parallel {

uint64_t ForwardSeeds::of(size_t replica) {
  std::call_once(once_, [this] {
    auto* const generator = at::get_generator_or_default<at::CPUGeneratorImpl>(
        std::nullopt, at::detail::getDefaultCPUGenerator());
    const std::lock_guard lock(generator->mutex_);
    base_ = generator->random64();
  });
  // The CPU generator uses 32 bits of its seed; an odd factor keeps the replicas' seeds distinct.
  return (base_ + replica * 0x9e3779b9U) & 0xffffffffU;
}

ReplicaRandom::ReplicaRandom(ForwardSeeds& seeds, size_t replica)
    : here_([this, &seeds, replica]() -> const at::Generator& {
        if (!generator_) generator_ = at::detail::createCPUGenerator(seeds.of(replica));
        return *generator_;
      }) {}

}  // namespace lockstep::inline v0::data_parallel
