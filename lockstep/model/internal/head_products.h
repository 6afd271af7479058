// The three products of a vocabulary's weight, for a chunk of rows: logits, and from their gradient those of the
// rows and of the weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "lockstep/model/internal/arithmetic.h"

namespace lockstep::inline v0::internal {

// Rows are float32 or float64, the weight's type, and for kBFloat16 bfloat16. Gradients are of the types of what
// they are gradients of.
class HeadProducts {
 public:
  struct Wanted {
    bool rows = false;
    bool weight = false;
  };

  // Keeps the tensors.
  HeadProducts(const at::Tensor& rows, const at::Tensor& weight, Wanted wanted)
      : rows_(rows), weight_(weight), wanted_(wanted) {}
  HeadProducts(const HeadProducts&) = delete;
  HeadProducts& operator=(const HeadProducts&) = delete;
  virtual ~HeadProducts() = default;

  // Writes the logits of rows [begin, begin + logits.size(0)) into `logits` [chunk, vocabulary],
  // float32 for bfloat16, rows logits_pitch() elements apart. What lies between may be overwritten.
  virtual void logits(int64_t begin, const at::Tensor& logits) = 0;
  // Computes the wanted gradients from that of those logits. The first chunk is the largest.
  virtual void gradients(int64_t begin, const at::Tensor& dlogits) = 0;

  // The gradients of the chunks so far; undefined where they are not wanted.
  at::Tensor drows, dweight;

 protected:
  at::Tensor rows_, weight_;
  Wanted wanted_;
};

// Elements from row to row of a chunk's logits.
int64_t logits_pitch(int64_t vocabulary, Arithmetic arithmetic);

// kFloat32, also for float64, or kBFloat16.
std::unique_ptr<HeadProducts> head_products(const at::Tensor& rows, const at::Tensor& weight,
                                            HeadProducts::Wanted wanted, Arithmetic arithmetic);

}  // namespace lockstep::inline v0::internal
