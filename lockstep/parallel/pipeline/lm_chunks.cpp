#include "lockstep/parallel/pipeline/lm_chunks.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <numeric>
#include <utility>

#include "lockstep/comm/backend/types.h"
#include "lockstep/core/errors.h"
#include "lockstep/plan/pipeline_cut.h"

namespace lockstep::inline v0 {

struct LmChunks::State {
  TransformerLm lm{nullptr};
  std::vector<int> first;  // units, one past the last
  std::vector<std::vector<int64_t>> lengths;
  std::vector<int64_t> padding;     // of each micro-batch's sequences
  std::vector<int64_t> rows;        // of each micro-batch here
  std::vector<int64_t> first_rows;  // of each micro-batch in the whole batch
  uint64_t dropout_seed = 0;
  double scale = 1;
  LmEnd end = LmEnd::kLogits;
  LmPass last_pass;  // of the last chunk's forward, until its loss
  LmPass take_pass(const char* what, const MicroBatch& micro_batch);
  std::map<std::pair<int, int>, std::shared_ptr<internal::DeferredGradients>> deferred;
  std::map<int64_t, RouterStatistics> routed;  // per layer, since begin()

  // All tokens have equally many choices, so weighting by choices equals weighting by tokens.
  static double choices_of(const RouterStatistics& one) {
    return static_cast<double>(std::accumulate(one.choices.begin(), one.choices.end(), int64_t{0}));
  }
  void count(const LmPass& pass) {
    for (RouterStatistics& one : router_statistics(pass)) {
      const auto [found, is_new] = routed.try_emplace(one.layer, one);
      if (is_new) continue;
      RouterStatistics& all = found->second;
      const double before = choices_of(all), more = choices_of(one);
      const double share = before + more > 0 ? more / (before + more) : 0;
      for (size_t i = 0; i < all.choices.size(); ++i) all.choices[i] += one.choices[i];
      all.left_out += one.left_out;
      all.entropy += (one.entropy - all.entropy) * share;
      all.balance += (one.balance - all.balance) * share;
    }
  }

  // The number of a micro-batch's tokens that are not padding.
  int64_t tokens_of(size_t index) const {
    return std::accumulate(lengths[index].begin(), lengths[index].end() - padding[index],
                           int64_t{0});
  }

  at::Tensor forward(int chunk, const at::Tensor& rows, const MicroBatch& micro_batch) {
    const auto index = static_cast<size_t>(micro_batch.index);
    if (index >= lengths.size() || this->rows[index] != micro_batch.rows)
      throw InvalidArgument("LmChunks: micro-batch " + std::to_string(micro_batch.index) + " of " +
                            std::to_string(micro_batch.rows) +
                            " tokens is not what begin() was told; call it before each step");
    LmPassOptions options{
        .first_row = first_rows[index], .dropout_seed = dropout_seed, .padding = padding[index]};
    if (micro_batch.defer_weights)
      options.deferred = deferred[{chunk, micro_batch.index}] = make_deferred();
    const LmPass pass = lm->pass(lengths[index], options);
    at::Tensor x = rows;
    int behind = first[static_cast<size_t>(chunk) + 1];
    if (behind == first.back() && end == LmEnd::kRows) {
      --behind;
      last_pass = pass;
    }
    for (int unit = first[static_cast<size_t>(chunk)]; unit < behind; ++unit)
      x = lm->units()[static_cast<size_t>(unit)]->forward(x, pass);
    if (!lm->is_training() || !lm->config().has_experts()) return x;
    // This micro-batch's share of the batch.
    int64_t all = 0;
    for (size_t i = 0; i < lengths.size(); ++i) all += tokens_of(i);
    x = attach_router_losses(
        x, pass, scale * static_cast<double>(tokens_of(index)) / static_cast<double>(all));
    count(pass);
    return x;
  }

  void backward_weight(int chunk, const MicroBatch& micro_batch) {
    const auto found = deferred.find({chunk, micro_batch.index});
    if (found == deferred.end()) return;
    const auto gradients = std::move(found->second);
    deferred.erase(found);
    run_deferred(*gradients);
  }
};

LmChunks::LmChunks(TransformerLm lm, const std::vector<int>& cut, LmEnd end)
    : state_(std::make_shared<State>()) {
  state_->end = end;
  state_->first = first_units(cut_by_counts(static_cast<int>(lm->units().size()), cut));
  state_->lm = std::move(lm);
}

std::vector<PipelineChunk> LmChunks::chunks_of(const PipelineSchedule& schedule, int stage) const {
  const auto cut = static_cast<int>(state_->first.size()) - 1;
  if (schedule.all_chunks() != cut)
    throw InvalidArgument("LmChunks: the model is cut into " + std::to_string(cut) +
                          " chunks, and the schedule has " + std::to_string(schedule.all_chunks()));
  const hooks::ModelPart* const part = state_->lm->part();
  const PipelineRows rows{{state_->lm->config().hidden_size},
                          state_->lm->parameters().front().scalar_type(),
                          part != nullptr && part->divides_rows() ? part->count() : 1};
  // Chunks of two models, or of two divisions, may exchange the same rows.
  const std::vector<int>& first = state_->first;
  std::string sizes;
  for (int chunk = 0; chunk < cut; ++chunk) {
    const auto at = static_cast<size_t>(chunk);
    sizes += (chunk > 0 ? ", " : "") + std::to_string(first[at + 1] - first[at]);
  }
  std::array<char, 24> model{};
  std::snprintf(model.data(), model.size(), " (%08x)",
                static_cast<uint32_t>(fingerprint(to_json(state_->lm->config()))));
  const std::string origin = "a TransformerLm of " + std::to_string(first.back()) + " units" +
                             model.data() + " cut into " + sizes;
  std::vector<PipelineChunk> chunks;
  for (const int chunk : schedule.chunks_of(stage)) {
    const auto state = state_;
    chunks.push_back(
        {.forward = [state, chunk](
                        const at::Tensor& x,
                        const MicroBatch& micro) { return state->forward(chunk, x, micro); },
         .backward_weight =
             [state, chunk](const MicroBatch& micro) { state->backward_weight(chunk, micro); },
         .takes = rows,
         .gives = rows,
         .origin = origin});
  }
  return chunks;
}

std::vector<PipelineTie> LmChunks::ties_of(const PipelineSchedule& schedule, int stage) const {
  const int last = schedule.all_chunks() - 1;
  if (!state_->lm->config().tie_word_embeddings || last == 0) return {};
  PipelineTie tie{0, last, {}};
  if (schedule.stage_of.front() == stage || schedule.stage_of.back() == stage)
    tie.parameter = state_->lm->named_parameters()["model.embed_tokens.weight"];
  return {tie};
}

std::vector<std::string> LmChunks::parameters_of(const PipelineSchedule& schedule,
                                                 int stage) const {
  std::vector<std::string> names;
  const auto& units = state_->lm->unit_names();
  for (const int chunk : schedule.chunks_of(stage)) {
    for (int unit = state_->first[static_cast<size_t>(chunk)];
         unit < state_->first[static_cast<size_t>(chunk) + 1]; ++unit) {
      for (const auto& item : state_->lm->units()[static_cast<size_t>(unit)]->named_parameters())
        names.push_back(units[static_cast<size_t>(unit)] + "." + item.key());
    }
  }
  const bool tied = state_->lm->config().tie_word_embeddings;
  const std::string embeddings = "model.embed_tokens.weight";
  if (tied && schedule.stage_of.back() == stage &&
      std::find(names.begin(), names.end(), embeddings) == names.end())
    names.push_back(embeddings);
  return names;
}

std::vector<int64_t> LmChunks::begin(std::vector<std::vector<int64_t>> lengths,
                                     uint64_t dropout_seed, double scale,
                                     std::vector<int64_t> padding) {
  padding.resize(lengths.size(), 0);
  std::vector<int64_t> rows, first_rows;
  int64_t first = 0;
  for (const auto& of : lengths) {
    rows.push_back(state_->lm->own_rows(of).numel());
    first_rows.push_back(first);
    first += std::accumulate(of.begin(), of.end(), int64_t{0});
  }
  state_->rows = rows;
  state_->padding = std::move(padding);
  state_->first_rows = std::move(first_rows);
  state_->lengths = std::move(lengths);
  state_->dropout_seed = dropout_seed;
  state_->scale = scale;
  state_->deferred.clear();
  if (state_->lm->is_training()) state_->routed.clear();
  return rows;
}

std::vector<RouterStatistics> LmChunks::routers() const {
  std::vector<RouterStatistics> all;
  for (const auto& [layer, one] : state_->routed) all.push_back(one);
  return all;
}

LmPass LmChunks::State::take_pass(const char* what, const MicroBatch& micro_batch) {
  LmPass pass = std::exchange(last_pass, nullptr);
  if (!pass)
    throw InvalidArgument(std::string("LmChunks: ") + what + " of micro-batch " +
                          std::to_string(micro_batch.index) +
                          " follows the last chunk's forward, of chunks made with LmEnd::kRows");
  return pass;
}

at::Tensor LmChunks::loss(const at::Tensor& rows, const MicroBatch& micro_batch,
                          const at::Tensor& targets) {
  const LmPass pass = state_->take_pass("loss()", micro_batch);
  return head_loss(*state_->lm->units().back(), rows, targets, pass);
}

TokenScores LmChunks::scores(const at::Tensor& rows, const MicroBatch& micro_batch,
                             const at::Tensor& targets) {
  const LmPass pass = state_->take_pass("scores()", micro_batch);
  return head_scores(*state_->lm->units().back(), rows, targets, pass);
}

}  // namespace lockstep::inline v0
