// TokenWindows: texts as one sequence of tokens, cut into windows, for training a language model: a
// Dataset whose batches are LmBatches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// The target of tokens without a prediction, which next_token_loss() ignores.
inline constexpr int64_t kNoTarget = -100;

// Windows end to end, in the form of packed sequences for TransformerLm: a window that contains the
// end of a text is two sequences, which do not attend to each other. On the CPU, or on a loader's
// device, except the lengths.
struct LOCKSTEP_API LmBatch {
  at::Tensor ids;      // int64 [N]
  at::Tensor targets;  // int64 [N]: the next token; kNoTarget after a text's last one
  at::Tensor lengths;  // int64 [sequences], whose sum is N
  auto tensors() { return std::tie(ids, targets); }  // like TextBatch's
};

// The treatment of the tokens after the last whole window.
enum class WindowRest { kDropped, kKept };

// Cheap to copy: copies share the tokens.
// Thread-safety: all methods are const and may be called from any thread.
class LOCKSTEP_API TokenWindows {
 public:
  // No tokens.
  TokenWindows();
  // `texts` end to end, without those of less than two tokens. A window is `length` tokens, whose
  // targets are shifted by one; the rest after the last whole window is unused, or a shorter
  // window.
  // Throws: InvalidArgument for a length below 1, or a negative token.
  TokenWindows(std::span<const std::vector<int32_t>> texts, int64_t length,
               WindowRest rest = WindowRest::kDropped);

  int64_t size() const;                       // the number of windows
  int64_t length() const { return length_; }  // tokens of a whole window
  // In all windows together: the tokens, and those of them that have a target.
  int64_t tokens() const;
  int64_t targets() const;
  // Throws InvalidArgument for an index outside 0..size()-1, and for no indices.
  LmBatch batch(std::span<const int64_t> indices) const;

 private:
  struct Row;
  std::shared_ptr<const Row> row_;
  int64_t length_ = 1;
  WindowRest rest_ = WindowRest::kDropped;
};

}  // namespace lockstep::inline v0::data
