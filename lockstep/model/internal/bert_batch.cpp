#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/device/memory.h"
#include "lockstep/model/internal/bert_encoder.h"

namespace lockstep::inline v0::internal {
namespace {

[[noreturn]] void refuse_batch(const std::string& what) {
  throw InvalidArgument("BertClassifier: " + what);
}

std::string shape_of(const at::Tensor& tensor) {
  std::string text = "[";
  return text.append(joined(tensor.sizes())).append("]");
}

void check_like_ids(const at::Tensor& tensor, const at::Tensor& ids, const char* name) {
  if (tensor.sizes() != ids.sizes())
    refuse_batch(std::string(name) + " has shape " + shape_of(tensor) +
                 "; it must be as the ids', " + shape_of(ids));
}

void check_length(const BertConfig& config, int64_t length) {
  if (length < 1 || length > config.max_position_embeddings)
    refuse_batch("a sequence has " + std::to_string(length) + " tokens; it must have 1 to " +
                 std::to_string(config.max_position_embeddings));
}

// How many tokens each row of a mask on the CPU begins with, or nothing where a row is not ones followed by
// zeros.
std::vector<int64_t> lengths_of(const at::Tensor& mask) {
  const at::Tensor bits = mask.to(at::kBool).contiguous();
  const bool* at = bits.const_data_ptr<bool>();
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < bits.size(0); ++row, at += bits.size(1)) {
    const bool* end = std::find(at, at + bits.size(1), false);
    if (std::find(end, at + bits.size(1), true) != at + bits.size(1)) return {};
    lengths.push_back(end - at);
  }
  return lengths;
}

// What is added to the scores where a mask has holes.
at::Tensor bias_of(const at::Tensor& mask) {
  const at::Tensor hidden = mask.to(at::kBool).logical_not();
  return at::full(mask.sizes(), 0.0, mask.options().dtype(at::kFloat))
      .masked_fill_(hidden, std::numeric_limits<float>::lowest());
}

}  // namespace

BertBatch padded_batch(const BertConfig& config, const at::Tensor& ids, const at::Tensor& mask,
                       const at::Tensor& types) {
  BertBatch batch;
  batch.sequences = ids.size(0);
  batch.length = ids.size(1);
  check_length(config, batch.length);
  batch.ids = ids.reshape({-1});
  if (types.defined()) {
    check_like_ids(types, ids, "token_type_ids");
    batch.types = types.reshape({-1});
  }
  batch.first = at::arange(0, ids.numel(), batch.length, ids.options());
  std::vector<int64_t> keys(static_cast<size_t>(batch.sequences), batch.length);
  if (mask.defined()) {
    check_like_ids(mask, ids, "attention_mask");
    const std::vector<int64_t> whole = keys;
    // The host does not wait for a mask that is on a device. There one call with a bias for all sequences is also
    // faster than one for each length.
    keys = mask.is_cpu() ? lengths_of(mask) : std::vector<int64_t>();
    if (keys.empty() || (!ids.is_cpu() && keys != whole)) {
      batch.layout.bias = device::copy_to(bias_of(mask), ids.device());
      keys = whole;
    }
  }
  for (int64_t s = 0; s < batch.sequences; ++s) {
    // Where nothing may be looked at, transformers looks at everything alike.
    const int64_t seen = keys[static_cast<size_t>(s)];
    batch.layout.spans.push_back(
        {s * batch.length, batch.length, s * batch.length, seen == 0 ? batch.length : seen});
  }
  return batch;
}

BertBatch packed_batch(const BertConfig& config, const at::Tensor& ids, const at::Tensor& types,
                       const at::Tensor& lengths) {
  if (!lengths.defined() || lengths.dim() != 1 || lengths.scalar_type() != at::kLong ||
      !lengths.is_cpu())
    refuse_batch("ids of one dimension are packed sequences; give `lengths`, int64 [B] on the CPU");
  BertBatch batch;
  batch.sequences = lengths.size(0);
  batch.ids = ids;
  if (types.defined()) {
    check_like_ids(types, ids, "token_type_ids");
    batch.types = types;
  }
  const at::Tensor counts = lengths.contiguous();
  const at::Tensor positions = at::empty({ids.size(0)}, at::kLong),
                   first = at::empty({batch.sequences}, at::kLong);
  auto* position = positions.mutable_data_ptr<int64_t>();
  int64_t begin = 0;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t count = counts.const_data_ptr<int64_t>()[s];
    check_length(config, count);
    if (begin + count > ids.size(0)) break;
    for (int64_t i = 0; i < count; ++i) position[begin + i] = i;
    first.mutable_data_ptr<int64_t>()[s] = begin;
    batch.layout.spans.push_back({begin, count, begin, count});
    begin += count;
  }
  if (begin != ids.size(0) || static_cast<int64_t>(batch.layout.spans.size()) != batch.sequences)
    refuse_batch("the lengths do not add up to the " + std::to_string(ids.size(0)) + " ids");
  batch.positions = device::copy_to(positions, ids.device());
  batch.first = device::copy_to(first, ids.device());
  return batch;
}

BertBatch with_whole_rows(BertBatch batch, int64_t rows) {
  const int64_t count = batch.ids.size(0), more = (rows - count % rows) % rows;
  if (more == 0) return batch;
  const auto extended = [&](const at::Tensor& tensor) {
    return at::cat({tensor, at::zeros({more}, tensor.options())});
  };
  if (!batch.positions.defined())
    batch.positions = at::arange(batch.length, batch.ids.options()).repeat({batch.sequences});
  batch.ids = extended(batch.ids);
  batch.positions = extended(batch.positions);
  if (batch.types.defined()) batch.types = extended(batch.types);
  batch.layout.spans.push_back({count, more, count, more});
  if (batch.layout.bias.defined())
    batch.layout.bias = at::constant_pad_nd(
        batch.layout.bias, {0, std::max<int64_t>(0, more - batch.layout.bias.size(1)), 0, 1});
  return batch;
}

}  // namespace lockstep::inline v0::internal
