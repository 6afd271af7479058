#include "lockstep/model/internal/heads.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>

#include "lockstep/kernels/parallel.h"
#include "lockstep/model/internal/head_worker.h"

namespace lockstep::inline v0::internal {
namespace {

// The keys' rows that no span looks at: their gradient is 0.
void clear_between(const AttentionLayout& layout, const at::Tensor& rows,
                   const at::Tensor& columns) {
  int64_t done = 0;
  const auto clear = [&](int64_t to) {
    if (done >= to) return;
    rows.narrow(0, done, to - done).zero_();
    if (columns.defined()) columns.narrow(1, done, to - done).zero_();
  };
  for (const AttentionSpan& span : layout.spans) {
    clear(span.key_begin);
    done = span.key_begin + span.keys;
  }
  clear(rows.size(0));
}

// work(worker, span, head) for all of them.
template <typename T, typename Work>
void for_heads(const Heads& heads, const at::Tensor& statistics, bool backward, const Work& work) {
  int64_t most_keys = 1;
  for (const AttentionSpan& span : heads.layout->spans) most_keys = std::max(most_keys, span.keys);
  const auto count = static_cast<int64_t>(heads.layout->spans.size()) * heads.heads;
  const int threads = at::get_num_threads();
  const int64_t piece = threads > 1 ? std::max<int64_t>(1, count / (4 * threads)) : count;
  kernels::in_parallel(count, std::max<int64_t>(1, piece), threads,
                       [&](int64_t begin, int64_t end) {
                         head_worker::Worker<T> worker(heads, statistics, most_keys, backward);
                         for (int64_t i = begin; i < end; ++i)
                           work(worker, i / heads.heads, i % heads.heads);
                       });
}

}  // namespace

bool has_heads(at::ScalarType type) {
  return type == at::kFloat ||
         (type == at::kBFloat16 && at::native::cpublas::could_pack(at::kBFloat16));
}

void heads_forward(const Heads& heads, const at::Tensor& mixed, const at::Tensor& statistics) {
  const auto run = [&](auto& worker, int64_t span, int64_t head) {
    worker.forward(span, head, mixed);
  };
  if (mixed.scalar_type() == at::kBFloat16)
    return for_heads<at::BFloat16>(heads, statistics, /*backward=*/false, run);
  for_heads<float>(heads, statistics, /*backward=*/false, run);
}

void heads_backward(const Heads& heads, const at::Tensor& statistics, const at::Tensor& dmixed,
                    const HeadsGradients& gradients) {
  clear_between(*heads.layout, gradients.keys, gradients.keys_columns);
  clear_between(*heads.layout, gradients.values, gradients.values_columns);
  const auto run = [&](auto& worker, int64_t span, int64_t head) {
    worker.backward(span, head, dmixed, gradients);
  };
  if (dmixed.scalar_type() == at::kBFloat16)
    return for_heads<at::BFloat16>(heads, statistics, /*backward=*/true, run);
  for_heads<float>(heads, statistics, /*backward=*/true, run);
}

}  // namespace lockstep::inline v0::internal
