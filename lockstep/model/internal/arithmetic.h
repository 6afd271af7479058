// Which of a model's forms computes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep::inline v0::internal {

// How embeddings and layers are computed.
enum class Arithmetic {
  kComposed,  // of libtorch's operations, whatever the device and the type
  kFloat32,   // by one node of the graph each, on the CPU
  kBFloat16,  // likewise, as autocast asks for
};

// By where and what `parameter` is, and by autocast. Dropout draws other numbers in the composed
// form; results agree otherwise.
Arithmetic arithmetic_for(const at::Tensor& parameter);

// In a node: what is called there has its types chosen already.
c10::impl::ExcludeDispatchKeyGuard without_autocast();
// In a node's backward, which is written by hand: throws InvalidArgument under create_graph.
void refuse_second_gradient(const char* model);

}  // namespace lockstep::inline v0::internal
