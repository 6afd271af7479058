// ThreadAttention: the attention that a model's forward computes by at::scaled_dot_product_attention() is computed by
// another function, on one thread, though the model's source says nothing of it. Context parallelism stands on it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::hooks {

namespace internal {
class KeyOnThread;
}

// The arguments of scaled_dot_product_attention().
struct AttentionCall {
  at::Tensor queries, keys, values;  // [..., heads, tokens, width]
  at::Tensor mask;                   // may be undefined
  double dropout = 0;
  bool is_causal = false;
  std::optional<double> scale;  // none: 1 / sqrt(width)
  bool has_groups = false;      // several heads of queries share one of keys
};

// While it lives, calls of this thread get what `attend` returns: above autograd and autocast, so `attend` is
// differentiated as it is written. Within `attend` the operation is libtorch's own. Throws InvalidArgument where one lives on this thread already. Code that calls a kernel of
// attention by its own name is not seen. Do not make two at once on a thread.
class LOCKSTEP_API ThreadAttention {
 public:
  using Attend = std::function<at::Tensor(const AttentionCall& call)>;

  explicit ThreadAttention(Attend attend);
  ~ThreadAttention();
  ThreadAttention(const ThreadAttention&) = delete;
  ThreadAttention& operator=(const ThreadAttention&) = delete;

 private:
  Attend attend_;
  std::unique_ptr<internal::KeyOnThread> key_;
};

}  // namespace lockstep::inline v0::hooks
