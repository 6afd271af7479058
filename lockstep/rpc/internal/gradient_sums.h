// The gradients of an AutogradContext in one process, summed in one order however the threads run that compute them: floating-point
// sums in another order have other bits. Not a public header.
//
// What one pass has computed comes as one gradient. The passes' are added the later call's first, as autograd does in one process;
// those of later rounds behind them. A gradient waits until all that may come before it are there: since callers begin the passes in that
// order, few are kept apart. Those of one turn, which comes twice where two graphs share a call (retain_graph), are summed as they
// come. Pure: it knows no calls and no clock. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace lockstep::rpc::internal {

// The place of a call among those of its context: the place of the call that it is made in, and how many that one had made before. It
// is the same in every run of a program whose functions do the same, whichever threads serve them; but for calls that coroutines make
// side by side, which are counted as they come. Empty: the context's own thread.
using CallPath = std::vector<uint32_t>;
inline constexpr size_t kDeepestCall = 256;  // the longest path

// By which pass a gradient was computed: in which round of backward, and through the part of the graph of which call.
struct Turn {
  uint64_t round = 0;
  CallPath path;
  // Rounds in their order; in a round the later call first.
  friend bool operator<(const Turn& a, const Turn& b) {
    return a.round != b.round ? a.round < b.round : a.path > b.path;
  }
};

class GradientSums {
 public:
  using ParameterAndGradient = std::pair<at::Tensor, at::Tensor>;

  void add(const Turn& turn, const at::Tensor& parameter, at::Tensor gradient);
  // Sums what comes before `open`, the first turn that may still bring gradients.
  void settle_before(const Turn& open);
  void settle();  // all: nothing more comes

  // Of what is settled. Undefined: none.
  at::Tensor of(const at::Tensor& parameter) const;
  std::vector<ParameterAndGradient> all() const;
  size_t waiting() const;  // gradients that are kept apart

 private:
  using Waiting = std::map<Turn, std::vector<ParameterAndGradient>>;
  void settle_until(Waiting::iterator end);

  Waiting waiting_;
  std::map<const c10::TensorImpl*, ParameterAndGradient> sums_;
};

}  // namespace lockstep::rpc::internal
