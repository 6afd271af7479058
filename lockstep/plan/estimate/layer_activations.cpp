#include <algorithm>

#include "lockstep/plan/estimate/internal/real.h"
#include "lockstep/plan/estimate/memory.h"

namespace lockstep::inline v0::plan {
namespace {

// Elements for each token of a micro-batch.
struct Kept {
  double whole = 0;     // of what tensor does not divide, unless rows are divided
  double gathered = 0;  // the same, but for stacks that keep them whole for the products' backward
  double divided = 0;   // of a rank's own
  double scores = 0;    // of attention's scores and what became of them, in bytes
  double statistics =
      0;  // of norms, attention and routing, in bytes: of 32 bits in every precision
};

double inner_of(const ModelShape& m, double width) {
  return width * (m.gated ? 3 : 2);
}

Kept all_of(const ModelShape& m, int64_t layer, const Layout& layout, const Stack& stack,
            double bytes) {
  Kept kept;
  // The two norms' inputs; their outputs, which go into products; a mask of a byte for each of two dropouts.
  kept.gathered = 2 * real(m.hidden);
  kept.whole = 2 * real(m.hidden) + (m.dropout ? 2 * real(m.hidden) / bytes : 0);
  const double parts = layout.tensor, heads = real(m.heads) / parts;
  const double keys = std::max(1.0, real(m.key_value_heads()) / parts);
  if (m.kv_rank > 0) {
    kept.whole += 2 * real(m.query_rank + m.kv_rank) + real(m.rotated_dim);
    kept.divided += heads * real(2 * m.score_width() + m.value_width());
  } else {
    kept.divided += (heads + 2 * keys) * real(m.head_width());
  }
  kept.divided += heads * real(m.value_width());
  if (stack.own_model) {
    // By heads and by rows, which are one for a single head; with context in the order of rows alone.
    if (layout.context == 1 && heads > 1) kept.divided += heads * real(m.value_width());
    kept.statistics = 4 * (heads + 2.0 / (layout.divides_rows ? layout.tensor : 1));
  }
  if (!stack.fused_attention) {
    // The softmax; with dropout its mask and what it leaves, too.
    kept.scores = heads * real(layout.sequence) * (m.dropout ? 2 * bytes + 1 : bytes);
  }
  if (!m.layer_has_experts(layer)) {
    kept.divided += inner_of(m, real(m.ffn) / parts);
    return kept;
  }
  if (m.shared_ffn > 0) kept.divided += inner_of(m, real(m.shared_ffn) / parts);
  // A token comes to each of its experts, and goes back.
  const double copies = real(m.experts_per_token) / (layout.experts_folded ? layout.tensor : 1);
  kept.divided +=
      copies * (2 * real(m.hidden) + inner_of(m, real(m.expert_ffn) / layout.expert_tensor()));
  // Scores and shares of all experts; of each copy its place, its weight and where it goes, some of them as 64 bits.
  if (stack.own_model) kept.statistics += 4 * (2 * real(m.experts) + 9 * copies);
  return kept;
}

}  // namespace

double layer_activation_bytes(const ModelShape& m, int64_t layer, const Layout& layout,
                              const Stack& stack) {
  const double bytes = layout.precision == Precision::kFloat32 ? 4 : 2;
  const double rows = real(layout.rows()), alone = layout.divides_rows ? layout.tensor : 1;
  switch (layout.activations) {
    case Activations::kRecomputed: {
      constexpr double kGenerator = 5056;  // the state that the repetition starts from
      return rows * real(m.hidden) * bytes / alone + (stack.own_model ? kGenerator : 0);
    }
    case Activations::kAlternate: {
      // The layer's input, queries and values, attention's output, one of the MLP's inner products, its output.
      const double parts = layout.tensor;
      const double inner = m.layer_has_experts(layer)
                               ? real(m.experts_per_token * m.expert_ffn + m.shared_ffn)
                               : real(m.ffn);
      const double divided = (real(m.heads) * real(m.score_width() + m.value_width()) +
                              real(m.key_value_heads() * m.value_width()) + inner) /
                             parts;
      return rows * bytes * (2 * real(m.hidden) / alone + divided);
    }
    case Activations::kSelective:
    case Activations::kKept:
      break;
  }
  const Kept kept = all_of(m, layer, layout, stack, bytes);
  const bool drops = layout.activations == Activations::kSelective;
  const double gathered = kept.gathered / (stack.keeps_gathered ? 1 : alone);
  return rows * (bytes * (kept.whole / alone + gathered + kept.divided) + kept.statistics +
                 (drops ? 0 : kept.scores));
}

}  // namespace lockstep::inline v0::plan
