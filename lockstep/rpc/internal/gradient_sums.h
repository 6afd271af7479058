// The gradients of an AutogradContext in one process, summed in a fixed order for every schedule of
// the threads that compute them, since floating-point sums in another order have other bits. Not a
// public header.
//
// Each pass contributes one gradient. The passes' gradients are added the later call's first, as
// autograd does in one process; those of later rounds follow. A gradient waits until all that may
// precede it have arrived; callers start the passes in that order, so few are kept apart. Gradients
// of one turn, which occurs twice where two graphs share a call (retain_graph), are summed as they
// arrive. Pure: it knows no calls and no clock.
// Thread-safety: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace lockstep::inline v0::rpc::internal {

// The place of a call among those of its context: the place of the enclosing call, followed by the
// number of calls that it had made before. It is the same in every run of a program whose functions
// do the same, whichever threads serve them, except for calls that coroutines make concurrently,
// which are counted as they occur. Empty: the context's own thread.
using CallPath = std::vector<uint32_t>;
inline constexpr size_t kDeepestCall = 256;  // the longest path

// The pass that computed a gradient: its round of backward, and the call whose part of the graph it
// ran through.
struct Turn {
  uint64_t round = 0;
  CallPath path;
  // Orders rounds first; within a round the later call comes first.
  friend bool operator<(const Turn& a, const Turn& b) {
    return a.round != b.round ? a.round < b.round : a.path > b.path;
  }
};

class GradientSums {
 public:
  using ParameterAndGradient = std::pair<at::Tensor, at::Tensor>;

  void add(const Turn& turn, const at::Tensor& parameter, at::Tensor gradient);
  // Sums the gradients before `open`, the first turn that may still add some.
  void settle_before(const Turn& open);
  void settle();  // sums all: no more will be added

  // The settled sum. Undefined: none.
  at::Tensor of(const at::Tensor& parameter) const;
  std::vector<ParameterAndGradient> all() const;
  size_t waiting() const;  // gradients that are kept apart

 private:
  using Waiting = std::map<Turn, std::vector<ParameterAndGradient>>;
  void settle_until(Waiting::iterator end);

  Waiting waiting_;
  std::map<const c10::TensorImpl*, ParameterAndGradient> sums_;
};

}  // namespace lockstep::inline v0::rpc::internal
