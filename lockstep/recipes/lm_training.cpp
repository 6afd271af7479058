#include "lockstep/recipes/lm_training.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/core/text.h"
#include "lockstep/pretrained/language_model.h"
#include "lockstep/recipes/lm_evaluation.h"
#include "lockstep/recipes/supervised_recipe.h"
#include "lockstep/train/expert_figures.h"
#include "lockstep/train/lm_mesh_strategy.h"

namespace lockstep::inline v0 {
namespace {

// Sums over targets, as a mean for which every batch has as many.
struct LmLoss {
  double targets_a_token = 1;  // of the data set

  template <typename Model>
  LossOutput operator()(Model& model, const data::LmBatch& batch) const {
    at::Tensor loss = model(batch.ids, batch.lengths, batch.targets);
    const auto tokens = static_cast<double>(batch.targets.numel());
    const at::Tensor targets = batch.targets.ne(data::kNoTarget).sum();
    if (!loss.is_cpu()) {  // nor is the count, which the host does not wait for
      loss = loss * targets.to(loss.scalar_type()).div(tokens * targets_a_token);
    } else {
      const double share =
          static_cast<double>(targets.item<int64_t>()) / (tokens * targets_a_token);
      if (share != 1) loss = loss * share;
    }
    return {.loss = loss, .logits = {}, .labels = batch.targets};
  }
};

}  // namespace

LmInput lm_input(const TrainConfig& config) {
  return {.data = config.data,
          .tokenizer = config.tokenizer,
          .model = config.model,
          .context = config.context,
          .dropout = config.dropout};
}

TrainResult train_lm(Communicator& comm, const TrainConfig& config,
                     const TrainRunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_ranks(comm, config);
  const LmData texts = load_lm_data(lm_input(config));
  say_unread(comm, options, config.data, texts.unread);
  say_offload(comm, options, config);
  const double targets_a_token =
      static_cast<double>(texts.train.targets()) / static_cast<double>(texts.train.tokens());
  const auto make = [&] {
    TransformerLm model = make_lm(lm_input(config), texts);
    if (config.gradient_checkpointing && !divides_model(config))
      checkpoint_layers<LmUnit::Signature>(
          *model, {.names = {"model.layers.*"}, .options = {config.offload_checkpoints}});
    return model;
  };
  const SupervisedRecipe<TransformerLm, data::TokenWindows, LmLoss> recipe{
      .train = texts.train,
      .held_out = texts.dev.size(),
      .make = [&] { return drawn_from_seed(comm, config.seed, make, Draws::kOfAll); },
      .initial = [&](const TransformerLm& model) { return lm_values(lm_input(config), model); },
      .loss = {.targets_a_token = targets_a_token},
      .evaluate =
          [&](TransformerLm& model, Communicator& ranks, const auto& autocast) {
            return evaluate_lm(model, texts.dev, ranks,
                               {.batch_size = config.batch_size, .autocast = autocast});
          },
      .files = [&](const TransformerLm& model) { return lm_checkpoint_files(model, texts); },
      .figures =
          [](const TransformerLm& model, const Strategy& strategy) {
            const auto parallel = parallel_lm_of(strategy);
            return parallel ? router_figures(parallel->routers()) : expert_figures(model);
          },
      .question = "--prompt " + shell_quoted(texts.opening)};
  return train_supervised(comm, config, options, start, recipe);
}

void check_lm_model(const TrainConfig& config) {
  if (!config.tokenizer.empty() && config.tokenizer != kCharacterTokens)
    tokenizers::LmTokenizer::load(config.tokenizer);
  if (!std::filesystem::is_directory(config.model)) {
    lm_preset(config.model);
    return;
  }
  if (config.tokenizer.empty())
    check_language_model(config.model);
  else
    lm_stored_parts(config.model, lm_without_values(config.model));
}

RecipeCounts validate_lm_input(const TrainConfig& config) {
  const LmInput input = lm_input(config);
  const LmData texts = load_lm_data(input);
  if (std::filesystem::is_directory(config.model)) lm_values(input, make_lm(input, texts));
  return {.train = texts.train.size(), .held_out = texts.dev.size()};
}

}  // namespace lockstep::inline v0
