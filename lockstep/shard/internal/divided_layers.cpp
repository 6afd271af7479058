#include "lockstep/shard/internal/divided_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/tensor/tensor_regions.h"

namespace lockstep::inline v0::internal {
namespace {

using hooks::LayerCall;
using hooks::LayerHook;

class ColumnLayer final : public LayerHook, public hooks::LayerPart {
 public:
  ColumnLayer(std::shared_ptr<Division> division, std::string name, int64_t first_column)
      : division_(std::move(division)), name_(std::move(name)), first_column_(first_column) {}

  const LayerPart* part() const override { return this; }
  int64_t first_column() const override { return first_column_; }
  void agree(const at::Tensor& numbers) const override {
    Communicator(division_->comm()).broadcast(numbers, 0);
  }

  at::Tensor forward(LayerCall& call) override {
    const at::Tensor part = call.compute(division_->enter(call.input()));
    division_->opened(name_);
    return part;
  }

 private:
  std::shared_ptr<Division> division_;
  std::string name_;
  int64_t first_column_;
};

class RowLayer final : public LayerHook {
 public:
  RowLayer(std::shared_ptr<Division> division, std::string name, int64_t columns)
      : division_(std::move(division)), name_(std::move(name)), columns_(columns) {}

  at::Tensor forward(LayerCall& call) override {
    if (call.input().dim() == 0 || call.input().size(-1) != columns_)
      throw InvalidArgument("parallelize: '" + name_ + "' (row) was given " +
                            std::to_string(call.input().dim() == 0 ? 1 : call.input().size(-1)) +
                            " columns where this part's are " + std::to_string(columns_) +
                            "; divide what makes them, by style column or heads, or leave '" +
                            name_ + "' whole");
    // Of the layer that is called, which may be a clone.
    const at::Tensor bias = call.leave_out_bias();
    const at::Tensor sum = division_->rows().leave(call.compute(call.input()));
    division_->closed();
    // Once, to the whole sum, by every part alike.
    return bias.defined() ? sum + bias.to(sum.scalar_type()) : sum;
  }

 private:
  std::shared_ptr<Division> division_;
  std::string name_;
  int64_t columns_;  // this part's
};

// A head over all words: its input is whole, and its logits are put together.
class HeadLayer final : public LayerHook {
 public:
  HeadLayer(std::shared_ptr<Division> division, std::vector<int64_t> counts)
      : division_(std::move(division)), counts_(std::move(counts)) {}

  at::Tensor forward(LayerCall& call) override {
    const at::Tensor part = call.compute(division_->rows().enter_head(call.input()));
    std::vector<int64_t> shape = part.sizes().vec();
    shape.back() = -1;
    return gather_columns(division_->comm(), part.reshape({-1, part.size(-1)}), counts_)
        .reshape(shape);
  }

 private:
  std::shared_ptr<Division> division_;
  std::vector<int64_t> counts_;
};

class WordsLayer final : public LayerHook, public hooks::LayerPart {
 public:
  const LayerPart* part() const override { return this; }
  int64_t first_column() const override { return 0; }
  void agree(const at::Tensor& numbers) const override {
    Communicator(division_->comm()).broadcast(numbers, 0);
  }

  WordsLayer(std::shared_ptr<Division> division, std::string name, const PartSlice& own,
             int64_t words)
      : division_(std::move(division)), name_(std::move(name)), own_(own), words_(words) {}

  at::Tensor forward(LayerCall& call) override {
    const at::Tensor& ids = call.input();
    check(ids);
    const at::Tensor places = ids - own_.begin;
    const at::Tensor foreign = places.lt(0).logical_or_(places.ge(own_.end - own_.begin));
    const at::Tensor rows = call.compute(places.masked_fill(foreign, 0));
    return division_->rows().leave_words(rows.masked_fill(foreign.unsqueeze(-1), 0));
  }

 private:
  // A word that no part has would be zeros. On a device the host would have to wait.
  void check(const at::Tensor& ids) const {
    if (!ids.is_cpu() || ids.numel() == 0) return;
    const auto least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
    if (least < 0 || most >= words_)
      throw InvalidArgument("parallelize: '" + name_ + "' was given the id " +
                            std::to_string(least < 0 ? least : most) + ", and has " +
                            std::to_string(words_) + " rows");
  }

  std::shared_ptr<Division> division_;
  std::string name_;
  PartSlice own_;
  int64_t words_;
};

class RowsLayer final : public LayerHook {
 public:
  RowsLayer(std::shared_ptr<Division> division, TensorStyle style)
      : division_(std::move(division)), style_(style) {}

  at::Tensor forward(LayerCall& call) override {
    const DividedRows& rows = division_->rows();
    if (style_ == TensorStyle::kPositions) return call.compute(rows.own_positions(call.input()));
    const at::Tensor y = call.compute(call.input());
    return style_ == TensorStyle::kRowsBegin ? rows.begin(y) : rows.end(y);
  }

 private:
  std::shared_ptr<Division> division_;
  TensorStyle style_;
};

}  // namespace

at::Tensor Division::enter(const at::Tensor& x) {
  const bool with_gradients = at::GradMode::is_enabled() && x.requires_grad();
  const int64_t version = x.is_inference() ? 0 : static_cast<int64_t>(x._version());
  const bool is_the_same = given_.is_same(x) && version_ == version;
  if (is_the_same && with_gradients_ == with_gradients) return entered_;
  given_ = x;
  entered_ = rows_.enter(x);
  version_ = version;
  with_gradients_ = with_gradients;
  return entered_;
}

void Division::closed() {
  open_.clear();
  given_ = entered_ = at::Tensor();
}

std::shared_ptr<LayerHook> divided_linear(std::shared_ptr<Division> division, std::string name,
                                          TensorStyle style, const std::vector<PartSlice>& slices) {
  const PartSlice& own = slices[static_cast<size_t>(division->comm().rank())];
  if (style == TensorStyle::kRow)
    return std::make_shared<RowLayer>(std::move(division), std::move(name), own.end - own.begin);
  if (style != TensorStyle::kVocabulary)
    return std::make_shared<ColumnLayer>(
        division, std::move(name), slices[static_cast<size_t>(division->comm().rank())].begin);
  std::vector<int64_t> counts;
  for (const PartSlice& slice : slices) counts.push_back(slice.end - slice.begin);
  return std::make_shared<HeadLayer>(std::move(division), std::move(counts));
}

std::shared_ptr<LayerHook> divided_embedding(std::shared_ptr<Division> division, std::string name,
                                             const std::vector<PartSlice>& slices) {
  const PartSlice own = slices[static_cast<size_t>(division->comm().rank())];
  return std::make_shared<WordsLayer>(std::move(division), std::move(name), own, slices.back().end);
}

std::shared_ptr<LayerHook> divided_row_layer(std::shared_ptr<Division> division,
                                             TensorStyle style) {
  if (style == TensorStyle::kRows || !division->rows().any()) return nullptr;
  return std::make_shared<RowsLayer>(std::move(division), style);
}

}  // namespace lockstep::inline v0::internal
