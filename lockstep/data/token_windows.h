// TokenWindows: texts as one row of tokens, cut into windows, to train a language model: a Dataset whose
// batches are LmBatches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

namespace lockstep::data {

// What nothing is predicted for: the target that next_token_loss() leaves out.
inline constexpr int64_t kNoTarget = -100;

// Windows end to end, as TransformerLm takes packed sequences: a window that the end of a text falls into
// is two sequences, which do not see each other. On the CPU, or on a loader's device all but the lengths.
struct LmBatch {
  at::Tensor ids;      // int64 [N]
  at::Tensor targets;  // int64 [N]: the token that comes next; kNoTarget behind a text's last one
  at::Tensor lengths;  // int64 [sequences], which sum to N
  auto tensors() { return std::tie(ids, targets); }  // as TextBatch's
};

enum class WindowRest { kDropped, kKept };

// Cheap to copy: copies share the tokens. All methods are const and may be called from any thread.
class TokenWindows {
 public:
  // No tokens.
  TokenWindows();
  // `texts` end to end, those of less than two tokens left out. A window is `length` tokens, whose targets
  // are one further on; what is left behind the last whole window is not used, or is a shorter window.
  // Throws InvalidArgument: a length below 1, a negative token.
  TokenWindows(std::span<const std::vector<int32_t>> texts, int64_t length,
               WindowRest rest = WindowRest::kDropped);

  int64_t size() const;
  int64_t length() const { return length_; }
  // In all windows together: tokens, and those of them that have a target.
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

}  // namespace lockstep::data
