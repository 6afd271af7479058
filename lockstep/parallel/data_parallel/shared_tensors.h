// Tensors of a module and their counterparts in its replicas. Not used directly.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::inline v0::data_parallel {

using Tensors = std::vector<at::Tensor>;

struct Shared {
  std::string name;
  at::Tensor own;
  Tensors copies;
};

// The entries of a module's parameters or buffers, with those of its copies. `kind` names them in
// an error.
// Throws: InvalidArgument unless the copies have the same entries, by name and shape, in the same
// order.
using NamedDict = torch::OrderedDict<std::string, at::Tensor>;
std::vector<Shared> match(const NamedDict& own, const std::vector<NamedDict>& copies,
                          const char* kind);

// Gives `copy` the memory of `source` and its version counter, but not its place in the graph, so
// that autograd notices a parameter that was changed between forward and backward.
void share_memory(at::Tensor& copy, const at::Tensor& source);
// Gives `copy` memory of its own with the values of `source`.
void copy_values(at::Tensor& copy, const at::Tensor& source, const at::Device& device);

int64_t bytes_of(const at::Tensor& tensor);  // 0 for an undefined one
int64_t bytes_of(const Tensors& tensors);

}  // namespace lockstep::inline v0::data_parallel
