#include "lockstep/replicas/gradient_plan.h"

#include <c10/core/ScalarType.h>

namespace lockstep::inline v0::internal {
namespace {

flat::Bucket alone(const flat::TensorSpec& spec, size_t index) {
  return {.dtype = spec.dtype,
          .device = spec.device,
          .numel = spec.numel,
          .slots = {{.tensor = index, .offset = 0}}};
}

}  // namespace

std::vector<flat::Bucket> plan_gradients(std::span<const flat::TensorSpec> parameters,
                                         int64_t bucket_bytes, int64_t alone_bytes) {
  std::vector<flat::Bucket> buckets;
  std::vector<size_t> together;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto bytes = parameters[i].numel * static_cast<int64_t>(elementSize(parameters[i].dtype));
    if (bucket_bytes == 0 || bytes >= alone_bytes)
      buckets.push_back(alone(parameters[i], i));
    else
      together.push_back(i);
  }
  if (together.empty()) return buckets;
  for (flat::Bucket& bucket :
       flat::plan_buckets(parameters, together, {.first = bucket_bytes, .rest = bucket_bytes})) {
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

uint64_t shapes_word(std::span<const at::Tensor> parameters) {
  uint64_t word = parameters.size();
  const auto mix = [&word](int64_t value) {
    word = (word ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15ULL;
    word ^= word >> 29;
  };
  for (const at::Tensor& parameter : parameters) {
    mix(static_cast<int64_t>(parameter.scalar_type()));
    mix(parameter.dim());
    for (const int64_t size : parameter.sizes()) mix(size);
  }
  return word;
}

}  // namespace lockstep::inline v0::internal
