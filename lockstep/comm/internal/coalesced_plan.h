// Which tensors of a list travel together. The decision uses dtypes, sizes and kinds of device
// alone, so that all ranks decide alike. Pure. Not a public header.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::inline v0 {

struct CoalescedItem {
  at::ScalarType dtype;
  int64_t bytes;
  c10::DeviceType device = c10::kCPU;
};

// The operations, each as the indices of its tensors. For every dtype on every kind of device, in
// order of its first tensor, one operation carries all tensors of up to `limit` bytes in list
// order; then one operation follows for each longer tensor.
inline std::vector<std::vector<size_t>> plan_coalesced(std::span<const CoalescedItem> items,
                                                       int64_t limit) {
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].bytes > limit) continue;
    auto it = groups.begin();
    while (it != groups.end() && (items[it->front()].dtype != items[i].dtype ||
                                  items[it->front()].device != items[i].device))
      ++it;
    if (it == groups.end()) it = groups.insert(it, std::vector<size_t>());
    it->push_back(i);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].bytes > limit) groups.push_back({i});
  }
  return groups;
}

}  // namespace lockstep::inline v0
