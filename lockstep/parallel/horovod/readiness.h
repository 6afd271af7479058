// Tracks which gradients of a step are ready on this rank, and when to tell the other ranks. It
// does not communicate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::inline v0::horovod {

// One bit per parameter.
using Bits = std::vector<uint8_t>;

inline bool has_bit(const uint8_t* bits, size_t i) {
  return (bits[i / 8] >> (i % 8) & 1) != 0;
}
inline void set_bit(uint8_t* bits, size_t i) {
  bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | (1u << (i % 8)));
}

// The ranks agree in a fixed number of rounds per step, for any gradients and orders, so that all
// make the same calls. This rank's message of a round is fixed at the moment when it has that share
// of its gradients' bytes, not when the round takes place: it depends on the order of the gradients
// alone, and not on the speed of the other ranks. A rank that does not reach that share, because it
// leaves parameters out, sends its gradients when the step is closed. The last round is that of the
// closed step, in which everything counts as ready.
class Readiness {
 public:
  // Bytes of each parameter's gradient; a gradient is ready once it has arrived `passes` times.
  // `rounds`: the requested number, but at most the number of parameters, and at least one.
  Readiness(std::vector<int64_t> bytes, int64_t passes, int rounds);

  size_t size() const { return bytes_.size(); }
  size_t byte_count() const { return (bytes_.size() + 7) / 8; }
  size_t rounds() const { return rounds_; }

  // Returns false if it had already arrived often enough.
  bool arrived(size_t parameter);
  // The step's gradients are complete: the remaining rounds before the last are now due.
  void close();
  // Begins the next step.
  void reset();

  // The number of due rounds before the last, and this rank's message in one of them.
  size_t rounds_due() const { return said_.size(); }
  const Bits& said(size_t round) const { return said_[round]; }

  // Whether any gradient has arrived since reset(), which ones, and the maximum number of arrivals
  // of one gradient.
  bool any() const { return backwards_ > 0; }
  int64_t backwards() const { return backwards_; }
  Bits used() const;

 private:
  std::vector<int64_t> bytes_;
  int64_t passes_;
  size_t rounds_;
  int64_t total_ = 0;

  std::vector<int64_t> times_;  // arrivals of each gradient
  int64_t backwards_ = 0;
  int64_t ready_bytes_ = 0;
  Bits ready_;
  std::vector<Bits> said_;
};

}  // namespace lockstep::inline v0::horovod
