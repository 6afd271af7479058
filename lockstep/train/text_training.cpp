#include "lockstep/train/text_training.h"

#include <chrono>
#include <filesystem>
#include <optional>

#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/train/supervised_task.h"
#include "lockstep/train/text_evaluation.h"
#include "lockstep/train/text_loss.h"

namespace lockstep {
TextInput text_input(const TrainConfig& config) {
  return {.data = config.data,
          .vocab = config.vocab,
          .model = config.model,
          .padding = config.padding,
          .max_length = config.max_length,
          .remove_spaces = config.remove_spaces};
}

TrainResult train_texts(Communicator comm, const TrainConfig& config,
                        const TrainRunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_ranks(comm, config);
  const TextData texts = load_text_data(text_input(config));
  check_against_data(config, texts.train.size(), texts.dev.size());
  const auto strategy = options.strategy ? options.strategy : make_strategy(config.strategy);
  data::DistributedSampler sampler(texts.train.size(), strategy->data_ranks(comm),
                                   {.seed = config.seed});
  data::Loader loader(
      texts.train, sampler,
      {.batch_size = config.batch_size, .num_workers = static_cast<int>(config.workers)});

  const auto make = [&] { return make_text_model(text_input(config), texts); };
  StrategyModel model(drawn_from_seed(comm, config.seed, make), strategy, comm);
  const auto adamw = torch::optim::AdamWOptions(config.lr).weight_decay(config.weight_decay);
  const auto optimizer =
      strategy->make_optimizer(optim::decay_groups(*model.module(), adamw), adamw);
  const auto autocast =
      config.amp == "bf16" ? std::optional<amp::AutocastSettings>(std::in_place) : std::nullopt;
  SupervisedTask<BertClassifier, data::TokenizedTexts, TextClassificationLoss> task(
      {.model = model,
       .optimizer = *optimizer,
       .sampler = sampler,
       .loader = loader,
       .learning_rate = rates_of(config, loader.batches(), {.ratio = config.warmup_ratio}),
       .autocast = autocast});
  return run_recipe(
      comm, config, options,
      {.model = *model.module(),
       .strategy = *strategy,
       .optimizer = *optimizer,
       .task = task.task(
           [&] { return evaluate_texts(model.module(), texts.dev, comm, {.autocast = autocast}); }),
       .files = text_checkpoint_files(model.module(), texts),
       .labels = texts.labels,
       .start = start});
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

TextCounts validate_text_input(const TrainConfig& config) {
  const TextInput input = text_input(config);
  const TextData texts = load_text_data(input);
  if (std::filesystem::is_directory(config.model)) make_text_model(input, texts);
  return {texts.train.size(), texts.dev.size()};
}

}  // namespace lockstep
