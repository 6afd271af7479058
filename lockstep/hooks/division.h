// What a model with forwards of its own asks of those who divide it among ranks. Layers of libtorch's are divided by hooks
// around them (layer_hook.h). A module that computes several of them at once, by nodes of its own, is told which part it
// is (Divisible), and calls its part around its products. Every function is called on all ranks that divide the model,
// in one order, and is differentiable where it gives tensors and nothing else is said.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep::hooks {

// Some heads and inner columns of every layer, evenly, and some words (tensor parallelism, Shoeybi et al.,
// arXiv:1909.08053). The parameters are this part's slices.
class ModelPart {
 public:
  virtual ~ModelPart() = default;
  virtual int64_t index() const = 0;
  virtual int64_t count() const = 0;
  // Of a dim that is divided, whose slices' sizes differ by one at most, where a part's begins.
  int64_t begin(int64_t size, int64_t part) const { return size * part / count(); }
  int64_t begin(int64_t size) const { return begin(size, index()); }

  // Sequence parallelism (Korthikanti et al., arXiv:2205.05198): between the divided products each part has its own rows
  // only, of which the number of parts divides the rows that there are.
  virtual bool divides_rows() const = 0;
  // Before a divided product: rows as they are, or all parts' in order; in backward their gradients are added up over
  // the parts.
  virtual at::Tensor enter(const at::Tensor& rows) const = 0;
  // After one: the sum over the parts, or this part's rows of it; in backward as they are, or all parts' in order.
  virtual at::Tensor leave(const at::Tensor& rows) const = 0;
  // A parameter that each part has whole and uses for its own rows; its gradient is added up over the parts.
  virtual at::Tensor share(const at::Tensor& parameter) const = 0;
  // Of `heads`, fewer than parts, the one that neighbours have: its parameter as it is, whose gradient is added up over
  // those. At any time of backward.
  virtual at::Tensor share_head(const at::Tensor& parameter, int64_t heads) const = 0;
  // [rows, this part's of the columns] -> [rows, columns]; in backward this part's columns of the gradient.
  virtual at::Tensor gather(const at::Tensor& rows, int64_t columns) const = 0;
  // Statistics of logits, in place (VocabularyPart::combine). Without gradients.
  virtual void combine(const at::Tensor& statistics) const = 0;
  // What part 0 has drawn, on every part.
  virtual uint64_t agree(uint64_t drawn) const = 0;
};

// Some tokens of every sequence (context parallelism), of sequences that lie end to end. The ranks have equal models, or
// equal parts of one, and are given the same batches, whose lengths the functions take. A loss then has the value of the whole
// batch's on every rank, and count() times the gradient of this rank's share: the average over the ranks, as
// DistributedDataParallel makes it, is the whole batch's.
class TokenPart {
 public:
  using Lengths = std::vector<int64_t>;
  virtual ~TokenPart() = default;
  virtual int64_t count() const = 0;
  // This rank's rows, ascending, perhaps none; and how many each rank has. Send nothing.
  virtual std::vector<int64_t> rows(const Lengths& lengths) const = 0;
  virtual std::vector<int64_t> counts(const Lengths& lengths) const = 0;
  // Attention of this rank's rows to all rows of their sequences that are not behind them: queries [rows, heads,
  // width], keys and values [rows, key_value_heads, width], whose positions are in them -> [rows, heads, width].
  virtual at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const Lengths& lengths) const = 0;
  // Throws InvalidArgument for heads that attend() does not take. Sends nothing.
  virtual void check_heads(int64_t heads, int64_t key_value_heads) const = 0;
  // All ranks' rows, in the batch's order, of this rank's [rows, columns]. Without gradients.
  virtual at::Tensor gather(const at::Tensor& rows, const Lengths& lengths) const = 0;
  // float64 numbers, added up over the ranks in place.
  virtual void sum(const at::Tensor& numbers) const = 0;
  // At the begin of every pass: throws where the ranks' lengths or ids (which may be undefined) differ. Gives what the
  // first rank has drawn.
  virtual uint64_t agree(const Lengths& lengths, const at::Tensor& ids, uint64_t drawn) const = 0;
};

// A module that can be such parts. Throws InvalidArgument for what it cannot be; nothing is sent.
class Divisible {
 public:
  // Once, where the parameters have become its slices. One of one part changes nothing.
  virtual void take_part(std::shared_ptr<const ModelPart> part) = 0;
  virtual void take_tokens(std::shared_ptr<const TokenPart> tokens) = 0;

 protected:
  Divisible() = default;
  Divisible(const Divisible&) = default;
  Divisible& operator=(const Divisible&) = default;
  ~Divisible() = default;
};

}  // namespace lockstep::hooks
