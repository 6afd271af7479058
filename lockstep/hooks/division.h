// The interfaces by which a model with forwards of its own is divided among ranks. Layers of
// libtorch's are divided by hooks (layer_hook.h). A module that computes several at once is told
// its part instead (Divisible), and calls it around its products: on all ranks that divide the
// model, in one order. Functions that return tensors are differentiable unless noted.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::hooks {

// Some heads and inner columns of every layer, evenly, and some words (tensor parallelism,
// arXiv:1909.08053). The parameters are this part's slices.
class LOCKSTEP_API ModelPart {
 public:
  virtual ~ModelPart() = default;
  virtual int64_t index() const = 0;  // this part's number
  virtual int64_t count() const = 0;  // of parts
  // Where a part's slice of a divided dim begins; the sizes of slices differ by one at most.
  int64_t begin(int64_t size, int64_t part) const { return size * part / count(); }
  int64_t begin(int64_t size) const { return begin(size, index()); }

  // Sequence parallelism (arXiv:2205.05198): between the divided products each part has its own
  // rows only, as many as each other part.
  virtual bool divides_rows() const = 0;
  // Before a divided product: rows as they are, or all parts' in order; backward adds up their
  // gradients over the parts.
  virtual at::Tensor enter(const at::Tensor& rows) const = 0;
  // After one: the sum over the parts, or this part's rows of it; backward gives them back.
  virtual at::Tensor leave(const at::Tensor& rows) const = 0;
  // A parameter that each part uses for its own rows; backward adds up its gradients.
  virtual at::Tensor share(const at::Tensor& parameter) const = 0;
  // A parameter of the one head that neighbouring parts share where `heads` are fewer than parts;
  // backward adds up its gradient over those parts, at any time of backward.
  virtual at::Tensor share_head(const at::Tensor& parameter, int64_t heads) const = 0;
  // [rows, this part's columns] -> [rows, columns]; in backward this part's columns.
  virtual at::Tensor gather(const at::Tensor& rows, int64_t columns) const = 0;
  // Statistics of logits, in place (VocabularyPart::combine). Without gradients.
  virtual void combine(const at::Tensor& statistics) const = 0;
  // Returns on every part what part 0 has drawn.
  virtual uint64_t agree(uint64_t drawn) const = 0;
};

// Some tokens of every sequence (context parallelism), of sequences end to end. The ranks have
// equal models or parts, and are given the same batches, whose lengths the functions take. A loss
// is the whole batch's on every rank, with count() times the gradient of this rank's share: the
// mean over the ranks, as DistributedDataParallel makes it, is the whole batch's.
class LOCKSTEP_API TokenPart {
 public:
  using Lengths = std::vector<int64_t>;
  virtual ~TokenPart() = default;
  virtual int64_t count() const = 0;  // of ranks that share the tokens
  // This rank's rows, ascending, perhaps none; and how many each rank has. Send nothing.
  virtual std::vector<int64_t> rows(const Lengths& lengths) const = 0;
  virtual std::vector<int64_t> counts(const Lengths& lengths) const = 0;
  // Attention of this rank's rows to their sequences up to each row: queries [rows, heads, width],
  // keys and values [rows, key_value_heads, width], rotated by positions -> [rows, heads, width].
  virtual at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const Lengths& lengths) const = 0;
  // Throws InvalidArgument for heads that attend() does not take. Sends nothing.
  virtual void check_heads(int64_t heads, int64_t key_value_heads) const = 0;
  // All ranks' rows, in the batch's order, of this rank's [rows, columns]. Without gradients.
  virtual at::Tensor gather(const at::Tensor& rows, const Lengths& lengths) const = 0;
  // float64 numbers, added up over the ranks in place.
  virtual void sum(const at::Tensor& numbers) const = 0;
  // Begins every pass: throws where the ranks' lengths or ids (which may be undefined) differ.
  // Gives what the first rank has drawn.
  virtual uint64_t agree(const Lengths& lengths, const at::Tensor& ids, uint64_t drawn) const = 0;
};

// A module that can be such parts. Throws InvalidArgument for what it cannot be; nothing is sent.
class LOCKSTEP_API Divisible {
 public:
  // The dim of a parameter of that name that parts divide; -1: each has it whole.
  virtual int64_t divided_dim(const std::string& parameter) const = 0;
  // Once, where the parameters have become its slices. One of one part changes nothing.
  virtual void take_part(std::shared_ptr<const ModelPart> part) = 0;
  virtual void take_tokens(std::shared_ptr<const TokenPart> tokens) = 0;

 protected:
  Divisible() = default;
  Divisible(const Divisible&) = default;
  Divisible& operator=(const Divisible&) = default;
  ~Divisible() = default;
};

}  // namespace lockstep::inline v0::hooks
