#include "lockstep/shard/internal/divided_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/tensor/tensor_regions.h"

namespace lockstep::internal {
namespace {

using hooks::LayerCall;
using hooks::LayerHook;

class ColumnLayer final : public LayerHook {
 public:
  ColumnLayer(std::shared_ptr<Division> division, std::string name)
      : division_(std::move(division)), name_(std::move(name)) {}

  at::Tensor forward(LayerCall& call) override {
    const at::Tensor part = call.compute(division_->enter(call.input()));
    division_->opened(name_);
    return part;
  }

 private:
  std::shared_ptr<Division> division_;
  std::string name_;
};

class RowLayer final : public LayerHook {
 public:
  RowLayer(std::shared_ptr<Division> division, std::string name, const torch::nn::LinearImpl& layer)
      : division_(std::move(division)), name_(std::move(name)), layer_(layer) {}

  at::Tensor forward(LayerCall& call) override {
    const int64_t columns = layer_.weight.size(1);
    if (call.input().dim() == 0 || call.input().size(-1) != columns)
      throw InvalidArgument("parallelize: '" + name_ + "' (row) was given " +
                            std::to_string(call.input().dim() == 0 ? 1 : call.input().size(-1)) +
                            " columns where this part's are " + std::to_string(columns) +
                            "; divide what makes them, by style column or heads, or leave '" +
                            name_ + "' whole");
    call.leave_out_bias();
    const at::Tensor sum = division_->rows().leave(call.compute(call.input()));
    division_->closed();
    // Once, to the whole sum, by every part alike.
    return layer_.bias.defined() ? sum + layer_.bias.to(sum.scalar_type()) : sum;
  }

 private:
  std::shared_ptr<Division> division_;
  std::string name_;
  const torch::nn::LinearImpl& layer_;  // it holds this hook
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

class WordsLayer final : public LayerHook {
 public:
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
  const bool is_the_same = given_.is_same(x) && version_ == x._version();
  if (is_the_same && with_gradients_ == with_gradients) return entered_;
  given_ = x;
  entered_ = rows_.enter(x);
  version_ = x._version();
  with_gradients_ = with_gradients;
  return entered_;
}

void Division::closed() {
  open_.clear();
  given_ = entered_ = at::Tensor();
}

std::shared_ptr<LayerHook> divided_linear(std::shared_ptr<Division> division, std::string name,
                                          TensorStyle style, const torch::nn::LinearImpl& layer,
                                          const std::vector<PartSlice>& slices) {
  if (style == TensorStyle::kRow)
    return std::make_shared<RowLayer>(std::move(division), std::move(name), layer);
  if (style != TensorStyle::kVocabulary)
    return std::make_shared<ColumnLayer>(std::move(division), std::move(name));
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

}  // namespace lockstep::internal
