#include "lockstep/flat/bucket_plan.h"

#include <algorithm>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::flat {
namespace {

constexpr int64_t kAlignment = 64;  // bytes: a cache line

}  // namespace

std::vector<Bucket> plan_buckets(std::span<const TensorSpec> tensors, BucketSizes sizes) {
  std::vector<size_t> order;
  for (size_t i = tensors.size(); i-- > 0;) order.push_back(i);
  return plan_buckets(tensors, order, sizes);
}

std::vector<Bucket> plan_buckets(std::span<const TensorSpec> tensors, std::span<const size_t> order,
                                 BucketSizes sizes) {
  if (sizes.first < 1 || sizes.rest < 1)
    throw InvalidArgument("bucket sizes must be at least 1 byte");
  std::vector<Bucket> full;
  std::vector<Bucket> open;  // at most one per dtype and device
  for (const size_t i : order) {
    const TensorSpec& tensor = tensors[i];
    const auto element = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    auto bucket = std::find_if(open.begin(), open.end(), [&](const Bucket& b) {
      return b.dtype == tensor.dtype && b.device == tensor.device;
    });
    if (bucket == open.end()) {
      open.push_back({tensor.dtype, tensor.device, 0, {}});
      bucket = open.end() - 1;
    }
    const int64_t aligned = kAlignment / element;
    bucket->slots.push_back({i, bucket->numel});
    bucket->numel += (tensor.numel + aligned - 1) / aligned * aligned;
    if (bucket->numel * element >= (full.empty() ? sizes.first : sizes.rest)) {
      full.push_back(std::move(*bucket));
      open.erase(bucket);
    }
  }
  for (Bucket& bucket : open) full.push_back(std::move(bucket));
  return full;
}

}  // namespace lockstep::inline v0::flat
