// Cuts a row's batch into micro-batches, pads them where rows have to divide, and compares the
// batch among the row's ranks.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "lockstep/comm/agree.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/context/context_layout.h"
#include "lockstep/products/internal/state.h"

namespace lockstep::inline v0 {
namespace {

// Returns the lengths of sequences without targets that pad a micro-batch, so that each rank along
// context has some of its rows, and rows divide along tensor where they must. They are the fewest
// that suffice, found breadth first over the remainders of the ranks' rows; every rank of a row
// finds the same. Throws InvalidArgument where there are none.
std::vector<int64_t> padding_of(const Parallelism& how, const std::vector<int64_t>& lengths,
                                int64_t longest) {
  const int64_t ranks = how.size_of("context"),
                parts = how.divides_rows ? how.size_of("tensor") : 1;
  if (ranks == 1 && parts == 1) return {};
  const auto rows_of = [&](const std::vector<int64_t>& of) {
    std::vector<int64_t> rows;
    for (int64_t rank = 0; rank < ranks; ++rank)
      rows.push_back(static_cast<int64_t>(context_rows(of, rank, ranks).size()));
    return rows;
  };
  // Rows beyond 2 * parts are reduced: only the remainder matters, and whether there are any.
  const auto reduced = [&](std::vector<int64_t> rows) {
    for (int64_t& count : rows)
      if (count > parts) count = parts + count % parts;
    return rows;
  };
  const auto fits = [&](const std::vector<int64_t>& rows) {
    return std::all_of(rows.begin(), rows.end(),
                       [&](int64_t count) { return count > 0 && count % parts == 0; });
  };
  const std::vector<int64_t> start = rows_of(lengths);
  if (fits(start)) return {};
  std::vector<std::vector<int64_t>> added;
  for (int64_t more = 1; more <= std::min(longest, 2 * ranks * parts); ++more)
    added.push_back(rows_of({more}));
  std::map<std::vector<int64_t>, std::vector<int64_t>> seen{{reduced(start), {}}};
  std::vector<std::vector<int64_t>> border{reduced(start)};
  while (!border.empty() && seen.size() < 4096) {
    std::vector<std::vector<int64_t>> next;
    for (const auto& rows : border) {
      for (size_t i = 0; i < added.size(); ++i) {
        std::vector<int64_t> sum = rows, path = seen.at(rows);
        for (size_t rank = 0; rank < sum.size(); ++rank) sum[rank] += added[i][rank];
        sum = reduced(std::move(sum));
        path.push_back(static_cast<int64_t>(i) + 1);
        if (fits(sum)) return path;
        if (seen.emplace(sum, std::move(path)).second) next.push_back(sum);
      }
    }
    border = std::move(next);
  }
  throw InvalidArgument("ParallelLm: rows of these sequences do not divide among " +
                        std::to_string(ranks) + " ranks along context and " +
                        std::to_string(parts) +
                        " along tensor; give sequences whose lengths are multiples of " +
                        std::to_string(2 * ranks * parts) + ", or leave divided rows out");
}

}  // namespace

ParallelLm::State::Row ParallelLm::State::row_of(const LmRowBatch& batch, bool step) {
  const auto refuse = [](const std::string& what) { throw InvalidArgument("ParallelLm: " + what); };
  if (!batch.ids.defined() || batch.ids.scalar_type() != at::kLong || batch.ids.numel() == 0 ||
      batch.ids.dim() < 1 || batch.ids.dim() > 2)
    refuse("ids must be int64 [B, T], or [N] with lengths, and not empty");
  if (!batch.targets.defined() || batch.targets.scalar_type() != at::kLong ||
      batch.targets.sizes() != batch.ids.sizes())
    refuse("targets must be int64, of the shape of ids");
  // The host reads the batch, to compare it among the ranks of a row and to cut it.
  const at::Tensor ids = batch.ids.cpu(), targets = batch.targets.cpu();
  const auto least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
  if (least < 0 || most >= config.vocab_size)
    refuse("the id " + std::to_string(least < 0 ? least : most) + " is outside the vocabulary of " +
           std::to_string(config.vocab_size));
  const at::Tensor wrong =
      targets.ne(-100).logical_and_(targets.lt(0).logical_or_(targets.ge(config.vocab_size)));
  if (wrong.any().item<bool>())
    refuse("the target " + std::to_string(targets.masked_select(wrong)[0].item<int64_t>()) +
           " is outside the vocabulary of " + std::to_string(config.vocab_size) +
           "; -100 is for none");
  std::vector<int64_t> lengths;
  if (ids.dim() == 2) {
    if (batch.lengths.defined()) refuse("lengths go with packed ids [N], not with [B, T]");
    lengths.assign(static_cast<size_t>(ids.size(0)), ids.size(1));
  } else if (batch.lengths.defined()) {
    const at::Tensor flat = batch.lengths.to(at::kCPU, at::kLong).contiguous();
    const auto* const first = flat.const_data_ptr<int64_t>();
    lengths.assign(first, first + flat.numel());
  } else {
    lengths = {ids.size(0)};
  }
  if (std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) != ids.numel() ||
      std::any_of(lengths.begin(), lengths.end(), [](int64_t length) { return length < 1; }))
    refuse("lengths are 1 or more and sum to the " + std::to_string(ids.numel()) + " ids");
  for (const int64_t length : lengths)
    if (length > config.max_position_embeddings)
      refuse("a sequence of " + std::to_string(length) + " tokens; give 1 to " +
             std::to_string(config.max_position_embeddings));
  Row row;
  row.tokens = ids.numel();
  const at::Tensor flat_ids = ids.reshape({-1}), flat_targets = targets.reshape({-1});
  const auto sequences = lengths.size();
  agree_on_row(flat_ids, flat_targets, lengths);
  const size_t count = micro_batches_of(sequences, step);
  int64_t token = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto begin = lengths.begin() + static_cast<std::ptrdiff_t>(sequences * i / count),
               end = lengths.begin() + static_cast<std::ptrdiff_t>(sequences * (i + 1) / count);
    row.lengths.emplace_back(begin, end);
    const int64_t tokens = std::accumulate(begin, end, int64_t{0});
    at::Tensor own_ids = flat_ids.narrow(0, token, tokens);
    at::Tensor own_targets = flat_targets.narrow(0, token, tokens);
    at::Tensor places;
    row.targets_in.push_back(own_targets.ne(-100).sum().item<int64_t>());
    row.all_targets += row.targets_in.back();
    const std::vector<int64_t> padding =
        padding_of(how, row.lengths.back(), config.max_position_embeddings);
    row.padding.push_back(static_cast<int64_t>(padding.size()));
    if (!padding.empty()) {
      const int64_t more = std::accumulate(padding.begin(), padding.end(), int64_t{0});
      row.lengths.back().insert(row.lengths.back().end(), padding.begin(), padding.end());
      own_ids = at::cat({own_ids, at::zeros({more}, at::kLong)});
      own_targets = at::cat({own_targets, at::full({more}, -100, at::kLong)});
      places = at::arange(tokens + more);
    }
    if (how.size_of("context") > 1) {
      places = lm->own_rows(row.lengths.back());
      own_ids = own_ids.index_select(0, places);
      own_targets = own_targets.index_select(0, places);
    }
    // Padding has its place behind the batch.
    if (places.defined()) places = at::where(places.lt(tokens), places + token, row.tokens);
    row.ids.push_back(own_ids);
    row.targets.push_back(own_targets);
    row.places.push_back(places);
    row.tokens_of.push_back(tokens);
    token += tokens;
  }
  return row;
}

// If the batches of a row's ranks differed, the row would train on a batch that no rank was given.
void ParallelLm::State::agree_on_row(const at::Tensor& ids, const at::Tensor& targets,
                                     const std::vector<int64_t>& lengths) {
  const Communicator row = mesh.over({"pipe", "context", "tensor"});
  if (row.size() == 1) return;
  agree(row, "row",
        {{"ids", tensor_fingerprint(ids)},
         {"targets", tensor_fingerprint(targets)},
         {"lengths", tensor_fingerprint(at::tensor(lengths, at::kLong))}});
}

// Tokens go to other rows' experts in every micro-batch, so rows that exchange tokens run equally
// many micro-batches. In evaluation these are the rows along expert alone, which have the same
// batches.
size_t ParallelLm::State::micro_batches_of(size_t sequences, bool training) {
  const size_t count = std::min(sequences, static_cast<size_t>(how.micro_batches));
  if (!config.has_experts()) return count;
  Communicator rows = mesh.over(training ? std::vector<std::string>{"data", "expert"}
                                         : std::vector<std::string>{"expert"});
  if (rows.size() == 1) return count;
  const at::Tensor least = at::full({1}, static_cast<int64_t>(count), at::kLong);
  rows.iall_reduce(least, ReduceOp::kMin, call_note("ParallelLm: micro-batches")).wait();
  return static_cast<size_t>(least.item<int64_t>());
}

}  // namespace lockstep::inline v0
