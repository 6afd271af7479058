#include "lockstep/recipes/text_training.h"

#include <chrono>
#include <filesystem>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/core/text.h"
#include "lockstep/recipes/supervised_recipe.h"
#include "lockstep/train/text_evaluation.h"
#include "lockstep/train/text_loss.h"

namespace lockstep::inline v0 {
TextInput text_input(const TrainConfig& config) {
  return {.data = config.data,
          .vocab = config.vocab,
          .model = config.model,
          .padding = config.padding,
          .max_length = config.max_length,
          .remove_spaces = config.remove_spaces};
}

TrainResult train_texts(Communicator& comm, const TrainConfig& config,
                        const TrainRunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_ranks(comm, config);
  const TextData texts = load_text_data(text_input(config));
  say_unread(comm, options, config.data, texts.unread);
  say_offload(comm, options, config);
  const auto make = [&] {
    std::vector<std::string> drawn;
    BertClassifier model = make_text_model(text_input(config), texts, &drawn);
    if (!drawn.empty())
      say(comm, options,
          config.model + ": has no " + joined(drawn) + " for these classes; drawn anew");
    if (config.gradient_checkpointing)
      checkpoint_layers<BertUnit::Signature>(
          *model, {.names = {"bert.encoder.layer.*"}, .options = {config.offload_checkpoints}});
    return model;
  };
  const SupervisedRecipe<BertClassifier, data::TokenizedTexts, TextClassificationLoss> recipe{
      .train = texts.train,
      .held_out = texts.dev.size(),
      .make = [&] { return drawn_from_seed(comm, config.seed, make); },
      .evaluate =
          [&](BertClassifier& model, Communicator& ranks, const auto& autocast) {
            return evaluate_texts(model, texts.dev, ranks, {.autocast = autocast});
          },
      .files = [&](const BertClassifier& model) { return text_checkpoint_files(model, texts); },
      .labels = texts.labels,
      .question = "--text " + shell_quoted(texts.example)};
  return train_supervised(comm, config, options, start, recipe);
}

void check_text_model(const TrainConfig& config) {
  using tokenizers::BertTokenizer;
  if (!config.vocab.empty()) BertTokenizer::load(config.vocab);
  if (!std::filesystem::is_directory(config.model)) {
    bert_preset(config.model);
    return;
  }
  if (config.vocab.empty()) BertTokenizer::load(config.model);
  load_bert(config.model, {"0", "1"});
}

RecipeCounts validate_text_input(const TrainConfig& config) {
  const TextInput input = text_input(config);
  const TextData texts = load_text_data(input);
  if (std::filesystem::is_directory(config.model)) make_text_model(input, texts);
  return {.train = texts.train.size(), .held_out = texts.dev.size()};
}

}  // namespace lockstep::inline v0
