// Which gradients of a step are ready here, and when to tell the other ranks: bookkeeping without
// communication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::horovod {

// A bit a parameter.
using Bits = std::vector<uint8_t>;

inline bool has_bit(const uint8_t* bits, size_t i) {
  return (bits[i / 8] >> (i % 8) & 1) != 0;
}
inline void set_bit(uint8_t* bits, size_t i) {
  bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | (1u << (i % 8)));
}

// The ranks agree in a fixed number of rounds a step, whatever each of them produces and in
// whatever order, so that all make the same calls. What this rank says in a round is fixed at the
// moment when it has that share of its gradients' bytes, not when the round takes place: so it
// depends on the order of the gradients alone, not on how fast the other ranks are. Whoever does
// not get that far, since it leaves parameters out, says what it has when the step is closed. The
// last round is that of the closed step, in which everything counts as ready.
class Readiness {
 public:
  // Bytes of each parameter's gradient; a gradient is ready once it has arrived `passes` times.
  // `rounds`: as many as asked for, but no more than parameters, and at least one.
  Readiness(std::vector<int64_t> bytes, int64_t passes, int rounds);

  size_t size() const { return bytes_.size(); }
  size_t byte_count() const { return (bytes_.size() + 7) / 8; }
  size_t rounds() const { return rounds_; }

  // False if it has arrived often enough before.
  bool arrived(size_t parameter);
  // The step's gradients are complete: the rounds before the last that have not come up do now.
  void close();
  // The next step.
  void reset();

  // How many of the rounds before the last have come up, and what this rank says in one of them.
  size_t rounds_due() const { return said_.size(); }
  const Bits& said(size_t round) const { return said_[round]; }

  // Whether anything has arrived since reset(), what, and the most times that one gradient has.
  bool any() const { return backwards_ > 0; }
  int64_t backwards() const { return backwards_; }
  Bits used() const;

 private:
  std::vector<int64_t> bytes_;
  int64_t passes_;
  size_t rounds_;
  int64_t total_ = 0;

  std::vector<int64_t> times_;  // that each gradient has arrived
  int64_t backwards_ = 0;
  int64_t ready_bytes_ = 0;
  Bits ready_;
  std::vector<Bits> said_;
};

}  // namespace lockstep::horovod
