// The element-by-element work of a transformer layer on the CPU: dropout, norm, activation, softmax
// and changes of layout, each in one pass over memory.
//
// Kernels take raw pointers, know no autograd and start no threads. A kernel does rows [begin, end)
// of a matrix, and disjoint ranges may be done by different threads (parallel.h). Its results for a
// row do not depend on how rows are cut; sums over rows add up row by row within one call. Every
// kernel exists for several instruction sets with the same order of operations. It gives the same
// bits on every processor with AVX2, and nearly the same without fused multiplication and addition.
//
// Matrices are row-major. Statistics, sums and residuals are float32. `Type` is that of the tensors
// that products read and write; 16-bit values are widened, computed in float32 and rounded once, to
// nearest even.
#pragma once

#include <stdint.h>

namespace lockstep::inline v0::kernels {

enum class Type : uint8_t { kFloat32, kBFloat16 };

// Dropout without a stored mask. A hash of the seed, row and column says whether an element is
// kept, and backward computes it anew (dropout.h). Kept elements are multiplied by `scale`.
struct Dropout {
  uint64_t seed = 0;
  uint32_t threshold = 0;  // between 0, which keeps everything, and 65536
  float scale = 1;
};

// A part of a matrix that dropout is drawn for.
// Requires: `column` is a multiple of 32.
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
  const float* mean = nullptr;  // forward's
  const float* rstd = nullptr;
  const float* dy = nullptr;       // [rows, width], or null
  const void* dy_typed = nullptr;  // [rows, width] of `type`, or null; it is added to dy
  float* dz = nullptr;             // [rows, width]: the residual's gradient; may be dy
  void* dx = nullptr;              // [rows, width] of `type`, or null; may be dy_typed
  uint16_t* dx_columns = nullptr;  // dx in bfloat16 as [width, rows], or null
  int64_t columns_pitch = 0;       // elements from one row of dx_columns to the next
  // [4 * width]: the gradients of gamma, beta and bias are added to it; the last part is scratch.
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

// Backward needs the slope, which shares its exponential with the value.
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
  float* bias_sum = nullptr;  // [width]; the bias's gradient is added to it
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
  float* z = nullptr;     // [rows, width], or null where the sum is not needed
  void* y = nullptr;      // [rows, width] of `type`
  float* rrms = nullptr;  // [rows]: 1 / rms(z), for backward
};

struct RmsNormGradients {
  const float* z = nullptr;  // [rows, width]
  const float* rrms = nullptr;
  const void* dy = nullptr;       // [rows, width] of `type`
  const float* dz_too = nullptr;  // [rows, width], or null: z's gradient from other readers; added
  float* dz = nullptr;            // [rows, width]: the gradient of residual; may be dz_too
  void* dx = nullptr;             // [rows, width] of `type`, or null: dz rounded
  float* sums = nullptr;          // [width]; gamma's gradient is added to it
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

// Rotates the heads of rows by their positions (Su et al., arXiv:2104.09864; columns i and i +
// width / 2 of a head are a pair, as in Llama), and lays them out head by head: row r of a sequence
// of `length` rows that begins at row s goes to to[s * heads + h * length + (r - s)], rows of
// `width`.
struct Rotary {
  Type type = Type::kFloat32;
  int64_t heads = 1;
  int64_t width = 0;               // a head's, even
  int64_t pitch = 0;               // elements from row to row of `from`; of `to` in rotate_back()
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
  int64_t mask_row = 0;  // dropout's row for row 0
};

struct SoftmaxOutputs {
  float* scores = nullptr;   // [rows, pitch]; overwritten
  void* weights = nullptr;   // [rows, pitch] of `type`, after dropout; 0 beyond `keys`
  float* most = nullptr;     // [rows], for backward
  float* inverse = nullptr;  // [rows]: 1 / sum of exp(score - most)
};

// Backward computes the weights after dropout and the gradient of the scores (before `scale`). For
// float32 they take the place of `scores` and `dweights`, with 0 in the rows from the last one to
// `rows`; for bfloat16 they go to the other three.
struct SoftmaxGradients {
  float* scores = nullptr;    // [rows, pitch], as forward took them; overwritten
  float* dweights = nullptr;  // [rows, pitch]: gradient of the dropped weights; overwritten
  const float* most = nullptr;
  const float* inverse = nullptr;
  int64_t rows = 0;                // rows of all matrices, a multiple of kPad
  void* dscores = nullptr;         // bfloat16 [rows, pitch]
  void* dscores_packed = nullptr;  // bfloat16, as pack_rows() lays it out
  void* weights_packed = nullptr;
};

// Cross entropy of rows of logits against one target column each. The columns may be a part of the
// vocabulary.
struct CrossEntropy {
  int64_t width = 0;                 // this part's columns
  int64_t pitch = 0;                 // elements from row to row
  float* logits = nullptr;           // [rows, width]
  const int64_t* targets = nullptr;  // [rows]: a column, or a number outside of this part
};
// Statistics of the logits, [rows] each.
struct LogSums {
  float* most = nullptr;    // the largest logit
  float* sum = nullptr;     // the sum of exp(logit - most)
  float* target = nullptr;  // the target's logit; 0 where it is outside of this part
};

// Rows and columns of packed matrices are padded to a multiple of this.
inline constexpr int64_t kPad = 16;
// The width of a panel. The right matrix of a product, [inner, columns], is packed for oneDNN's
// kernels: float32 stays as it is; bfloat16 lies in panels of this many columns (the last one
// narrower), one after another, each in pairs of rows: [inner / 2, panel, 2].
inline constexpr int64_t kPanel = 64;

// The length of a row of normally distributed numbers.
inline constexpr int64_t kNormalRow = 1024;

// A matrix to read: `rows` times `columns`, with `pitch` elements from row to row.
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
  // With `keeps`, exp(logit - most) replaces the logits.
  void (*log_sums)(const CrossEntropy&, const LogSums&, bool keeps, int64_t begin, int64_t end);
  // Turns what log_sums() has kept into the logits' gradient, in place: a row times its factor,
  // less its scale at the target, and 0 throughout where the scale is 0. With factor = scale
  // exp(most - m) / s, where m and s are those of all columns, it is the gradient of scale times
  // the row's cross entropy.
  void (*cross_entropy_gradient)(const CrossEntropy&, const float* factors, const float* scales,
                                 int64_t begin, int64_t end);
  // Writes to [area's rows, columns] the scale for each kept element, and 0 for the others.
  void (*kept)(const Dropout&, const Area&, float* to);
  void (*rms_norm)(const RmsNorm&, const RmsNormOutputs&, int64_t begin, int64_t end);
  void (*rms_norm_backward)(const RmsNorm&, const RmsNormGradients&, int64_t begin, int64_t end);
  void (*swiglu)(const SwiGlu&, void* y, int64_t begin, int64_t end);
  void (*swiglu_backward)(const SwiGlu&, const SwiGluGradients&, int64_t begin, int64_t end);
  // Takes rows [begin, end) of one sequence of `length` rows from rows to heads; `from` and `to`
  // are the sequence's own.
  void (*rotate)(const Rotary&, const void* from, void* to, int64_t length, int64_t begin,
                 int64_t end);
  // Takes the gradient back from heads to rows, and rotates it back.
  void (*rotate_back)(const Rotary&, const void* from, void* to, int64_t length, int64_t begin,
                      int64_t end);
  // Rounds float32 to bfloat16.
  void (*round)(const float* from, uint16_t* to, int64_t count);
  // Rounds rows of `columns`; pitches are in elements.
  void (*round_rows)(const float* from, int64_t from_pitch, uint16_t* to, int64_t to_pitch,
                     int64_t rows, int64_t columns);
  // Widens bfloat16 to float32.
  void (*widen)(const uint16_t* from, float* to, int64_t count);
  // Adds to sums[column] the column's elements of rows [begin, end).
  void (*sum_rows)(const Source&, float* sums, int64_t begin, int64_t end);
  // Transposes to [columns, rows], with `pitch` elements from row to row.
  void (*transpose)(const Source&, void* to, int64_t pitch);
  // Packs it as the right matrix [inner = rows, columns] of a product, padded by zeros to `inner`
  // rows and `columns` columns, multiples of kPad.
  void (*pack_rows)(const Source&, int64_t inner, int64_t columns, void* to);
  // Packs its transpose as pack_rows() does: [inner = its columns, columns = its rows].
  void (*pack_columns)(const Source&, int64_t inner, int64_t columns, void* to);
  // Sets to[i] = deviation * number i of the seed (normal.h), for [begin, end).
  // Requires: `begin` is a multiple of kNormalRow.
  void (*fill_normal)(uint64_t seed, float deviation, float* to, int64_t begin, int64_t end);
};

// The fastest kernels that this processor has and LOCKSTEP_CPU_CAPABILITY allows
// (core/instruction_set.h).
const Kernels& kernels();

// All kernels that this processor has, the plainest first.
struct KernelList {
  const Kernels* const* first;
  int count;
};
KernelList all_kernels();

}  // namespace lockstep::inline v0::kernels
