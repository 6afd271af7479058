// The element-by-element work of a transformer layer on the CPU: dropout, norm, activation, softmax
// and changes of layout, each in one pass over memory.
//
// Raw pointers in, no autograd, no threads of its own: a kernel does rows [begin, end) of a matrix,
// and disjoint ranges may be done by different threads (parallel.h). What it writes for a row does
// not depend on how rows are cut; sums over rows add up row by row what one call sees. Every kernel
// exists for several instruction sets, with the same order of operations: the same bits on every
// processor with AVX2, nearly the same without fused multiplication and addition.
//
// Matrices are row-major. Statistics, sums and residuals are float32. `Type` is that of the tensors
// that products read and write; 16-bit values are widened, computed in float32 and rounded once, to
// nearest even.
#pragma once

#include <stdint.h>

namespace lockstep::kernels {

enum class Type : uint8_t { kFloat32, kBFloat16 };

// Dropout without a stored mask: whether element (row, column) is kept is a hash of both and of the
// seed, computed anew in backward (dropout.h). What is kept is multiplied by `scale`.
struct Dropout {
  uint64_t seed = 0;
  uint32_t threshold = 0;  // of 65536: 0 keeps everything
  float scale = 1;
};

// A part of a matrix that dropout is drawn for; `column` is a multiple of 32.
struct Area {
  int64_t row = 0;
  int64_t column = 0;
  int64_t rows = 0;
  int64_t columns = 0;
};

// z = dropout(x + bias) + residual; y = dropout(norm(z) * gamma + beta), over rows of `width`.
struct Norm {
  int64_t width = 0;
  Type type = Type::kFloat32;       // of x, of its gradient and of the second gradient
  const void* x = nullptr;          // [rows, width], or null
  const float* bias = nullptr;      // [width], or null
  const float* residual = nullptr;  // [rows, width], or null
  Dropout before;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float epsilon = 0;
  Dropout after;
};

struct NormOutputs {
  float* y = nullptr;           // [rows, width]
  uint16_t* rounded = nullptr;  // y in bfloat16, or null
  float* mean = nullptr;        // [rows], for backward
  float* rstd = nullptr;
};

struct NormGradients {
  const float* mean = nullptr;  // of forward
  const float* rstd = nullptr;
  const float* dy = nullptr;       // [rows, width], or null
  const void* dy_typed = nullptr;  // [rows, width] of `type`, or null: added to dy
  float* dz = nullptr;             // [rows, width]: the residual's gradient; may be dy
  void* dx = nullptr;              // [rows, width] of `type`, or null; may be dy_typed
  uint16_t* dx_columns = nullptr;  // dx in bfloat16 as [width, rows], or null
  int64_t columns_pitch = 0;       // from one of its rows to the next
  // [4 * width], added to: the gradients of gamma, beta and bias; the last part is scratch.
  float* sums = nullptr;
};

enum class Activation : uint8_t { kGelu, kGeluTanh, kRelu };

// y = activation(x + bias).
struct Activate {
  int64_t width = 0;
  Type type = Type::kFloat32;
  Activation activation = Activation::kGelu;
  const void* x = nullptr;      // [rows, width]
  const float* bias = nullptr;  // [width]
};

// The slope is what backward needs: both share their exponential.
struct ActivateOutputs {
  void* y = nullptr;      // [rows, width]
  void* slope = nullptr;  // [rows, width], or null; may be x
};

struct ActivateGradients {
  int64_t width = 0;
  Type type = Type::kFloat32;
  const void* slope = nullptr;
  void* dy = nullptr;              // [rows, width]; becomes dx
  uint16_t* dx_columns = nullptr;  // as in NormGradients
  int64_t columns_pitch = 0;
  float* bias_sum = nullptr;  // [width], added to
};

// z = x + residual; y = z * gamma / rms(z), rms(z) = sqrt(mean(z^2) + epsilon), over rows of
// `width` (Zhang and Sennrich, arXiv:1910.07467).
struct RmsNorm {
  int64_t width = 0;
  Type type = Type::kFloat32;       // of x, of y and of their gradients
  const void* x = nullptr;          // [rows, width], or null
  const float* residual = nullptr;  // [rows, width], or null
  const float* gamma = nullptr;
  float epsilon = 0;
};

struct RmsNormOutputs {
  float* z = nullptr;     // [rows, width], or null where nobody wants the sum
  void* y = nullptr;      // [rows, width] of `type`
  float* rrms = nullptr;  // [rows]: 1 / rms(z), for backward
};

struct RmsNormGradients {
  const float* z = nullptr;  // [rows, width]
  const float* rrms = nullptr;
  const void* dy = nullptr;       // [rows, width] of `type`
  const float* dz_too = nullptr;  // [rows, width], or null: what else reads z; added
  float* dz = nullptr;            // [rows, width]: the gradient of residual; may be dz_too
  void* dx = nullptr;             // [rows, width] of `type`, or null: the same, rounded
  float* sums = nullptr;          // [width], added to: gamma's gradient
};

// y = silu(gate) * up (Shazeer, arXiv:2002.05202).
struct SwiGlu {
  Type type = Type::kFloat32;
  const void* gate = nullptr;  // elements [begin, end)
  const void* up = nullptr;
};
struct SwiGluGradients {
  const void* dy = nullptr;
  void* dgate = nullptr;  // may be gate, up or dy, element by element
  void* dup = nullptr;
};

// Heads of rows that are rotated by their positions (Su et al., arXiv:2104.09864; columns i and i +
// width / 2 of a head are a pair, as Llama has it), and laid out head by head: row r of a sequence
// of `length` rows that begins at row s goes to to[s * heads + h * length + (r - s)], rows of
// `width`.
struct Rotary {
  Type type = Type::kFloat32;
  int64_t heads = 1;
  int64_t width = 0;               // of a head; even
  int64_t pitch = 0;               // elements from row to row of `from` (to, going back)
  const float* cosines = nullptr;  // [positions, width / 2]; null: nothing is rotated
  const float* sines = nullptr;
  const int64_t* positions = nullptr;  // [length]
};

// The weights of one block of queries of one head: softmax(scores * scale + bias), then dropout.
struct Softmax {
  int64_t keys = 0;
  int64_t pitch = 0;  // columns of every matrix here: keys rounded up to kPad
  Type type = Type::kFloat32;
  float scale = 1;
  const float* bias = nullptr;  // [keys], or null
  Dropout dropout;
  int64_t mask_row = 0;  // the dropout's row of row 0
};

struct SoftmaxOutputs {
  float* scores = nullptr;   // [rows, pitch]; overwritten
  void* weights = nullptr;   // [rows, pitch] of `type`, after dropout; 0 beyond `keys`
  float* most = nullptr;     // [rows], for backward
  float* inverse = nullptr;  // [rows]: 1 / sum of exp(score - most)
};

// Leaves the weights after dropout and the gradient of the scores (before `scale`): for float32 in
// place of `scores` and `dweights`, 0 in the rows from the last one to `rows`; for bfloat16 in the
// other three.
struct SoftmaxGradients {
  float* scores = nullptr;    // [rows, pitch], as forward took them; overwritten
  float* dweights = nullptr;  // [rows, pitch], of the weights after dropout; overwritten
  const float* most = nullptr;
  const float* inverse = nullptr;
  int64_t rows = 0;                // of all matrices, a multiple of kPad
  void* dscores = nullptr;         // bfloat16 [rows, pitch]
  void* dscores_packed = nullptr;  // bfloat16, as pack_rows() lays it out
  void* weights_packed = nullptr;
};

// Cross entropy of rows of logits against one column each, of all columns or of a part of them.
struct CrossEntropy {
  int64_t width = 0;                 // columns, of this part
  int64_t pitch = 0;                 // elements from row to row
  float* logits = nullptr;           // [rows, width]
  const int64_t* targets = nullptr;  // [rows]: a column; any other number is none of this part's
};
// [rows] each.
struct LogSums {
  float* most = nullptr;    // the largest logit
  float* sum = nullptr;     // of exp(logit - most)
  float* target = nullptr;  // the target's logit; 0 where it is none of this part's
};

// Rows and columns of packed matrices are padded to a multiple of this.
inline constexpr int64_t kPad = 16;
// The right matrix of a product, [inner, columns], is packed for oneDNN's kernels: float32 as it
// is; bfloat16 in panels of so many columns (the last one narrower), one after another, each in
// pairs of rows: [inner / 2, panel, 2].
inline constexpr int64_t kPanel = 64;

// Normally distributed numbers come in rows of so many.
inline constexpr int64_t kNormalRow = 1024;

// A matrix that is read: `rows` times `columns`, `pitch` elements from row to row.
struct Source {
  Type type = Type::kFloat32;
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t pitch = 0;
};

struct Kernels {
  const char* name;
  void (*norm)(const Norm&, const NormOutputs&, int64_t begin, int64_t end);
  void (*norm_backward)(const Norm&, const NormGradients&, int64_t begin, int64_t end);
  void (*activate)(const Activate&, const ActivateOutputs&, int64_t begin, int64_t end);
  void (*activate_backward)(const ActivateGradients&, int64_t begin, int64_t end);
  void (*softmax)(const Softmax&, const SoftmaxOutputs&, int64_t rows);
  void (*softmax_backward)(const Softmax&, const SoftmaxGradients&, int64_t rows);
  // With `keeps` exp(logit - most) takes the place of the logits.
  void (*log_sums)(const CrossEntropy&, const LogSums&, bool keeps, int64_t begin, int64_t end);
  // From what log_sums() has kept to the logits' gradient, in place: a row times its factor, less
  // its scale at the target; 0 throughout where the scale is 0. With factor = scale exp(most - m) /
  // s, m and s those of all columns, it is that of scale times the row's cross entropy.
  void (*cross_entropy_gradient)(const CrossEntropy&, const float* factors, const float* scales,
                                 int64_t begin, int64_t end);
  // to [area's rows, columns]: the scale for what is kept, 0 for the rest.
  void (*kept)(const Dropout&, const Area&, float* to);
  void (*rms_norm)(const RmsNorm&, const RmsNormOutputs&, int64_t begin, int64_t end);
  void (*rms_norm_backward)(const RmsNorm&, const RmsNormGradients&, int64_t begin, int64_t end);
  void (*swiglu)(const SwiGlu&, void* y, int64_t begin, int64_t end);
  void (*swiglu_backward)(const SwiGlu&, const SwiGluGradients&, int64_t begin, int64_t end);
  // Rows [begin, end) of one sequence of `length` rows, from rows to heads; `from` and `to` are the
  // sequence's own.
  void (*rotate)(const Rotary&, const void* from, void* to, int64_t length, int64_t begin,
                 int64_t end);
  // The gradient's way: from heads to rows, rotated back.
  void (*rotate_back)(const Rotary&, const void* from, void* to, int64_t length, int64_t begin,
                      int64_t end);
  // float32 -> bfloat16.
  void (*round)(const float* from, uint16_t* to, int64_t count);
  // Likewise, rows of `columns`; pitches in elements.
  void (*round_rows)(const float* from, int64_t from_pitch, uint16_t* to, int64_t to_pitch,
                     int64_t rows, int64_t columns);
  // bfloat16 -> float32.
  void (*widen)(const uint16_t* from, float* to, int64_t count);
  // sums[column] += the column's elements of rows [begin, end).
  void (*sum_rows)(const Source&, float* sums, int64_t begin, int64_t end);
  // to [columns, rows], `pitch` elements from row to row.
  void (*transpose)(const Source&, void* to, int64_t pitch);
  // As the right matrix [inner = rows, columns] of a product; padded by zeros to `inner` rows and
  // `columns` columns, multiples of kPad.
  void (*pack_rows)(const Source&, int64_t inner, int64_t columns, void* to);
  // As pack_rows() of its transpose: [inner = its columns, columns = its rows].
  void (*pack_columns)(const Source&, int64_t inner, int64_t columns, void* to);
  // to[i] = deviation * number i of the seed (normal.h), for [begin, end); `begin` is a multiple of
  // kNormalRow.
  void (*fill_normal)(uint64_t seed, float deviation, float* to, int64_t begin, int64_t end);
};

// The fastest that this processor has and LOCKSTEP_CPU_CAPABILITY allows (core/instruction_set.h).
const Kernels& kernels();

// All that this processor has, the plainest first.
struct KernelList {
  const Kernels* const* first;
  int count;
};
KernelList all_kernels();

}  // namespace lockstep::kernels
