// HostViews: tensors of a device as tensors of the CPU over the same memory, for one operation. Not
// a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <map>
#include <vector>

namespace lockstep::inline v0::testing::fake {

// The memory is to be open as long as its views are used.
class HostViews {
 public:
  // The same view for the same tensor, the same storage for the same storage.
  at::Tensor of(const at::Tensor& tensor);

  // What an operation gave back, as a tensor of `device`: the argument itself, a view of one, or
  // new memory.
  at::Tensor back(const at::Tensor& result, int device) const;

  // Arguments whose size the operation has changed get it on the device too. After the operation,
  // before back().
  // Gives those back whose results are in the host's memory, since the device's was too small.
  struct Outgrown {
    at::Tensor host;
    void* to;
    size_t bytes;
    void copy() const;  // the results, once more
  };
  std::vector<Outgrown> resize_changed() const;

  // Whether it is one of the views, or has the memory of one.
  bool holds(const at::Tensor& host) const;

 private:
  struct Pair {
    at::Tensor device;
    at::Tensor host;
  };
  std::vector<Pair> pairs_;
  std::map<const c10::StorageImpl*, c10::Storage> storages_;  // by the device's
};

// A view that keeps no memory.
at::Tensor bare_view(const at::Tensor& tensor);

// A tensor's elements in new memory of a device, with the same strides.
at::Tensor copy_to_device(const at::Tensor& host, int device);

// As at::Tensor::resize_ of a CUDA tensor. What was in the memory stays.
const at::Tensor& resize_tensor(const at::Tensor& self, at::IntArrayRef sizes,
                                at::OptionalIntArrayRef strides);

}  // namespace lockstep::inline v0::testing::fake
