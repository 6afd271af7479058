#include "lockstep/cli/engine/inference/language_commands.h"

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/inference/saved_model.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/data/language_texts.h"
#include "lockstep/pretrained/language_model.h"
#include "lockstep/recipes/lm_data.h"
#include "lockstep/recipes/lm_evaluation.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/report/table.h"

namespace lockstep::engine {
namespace fs = std::filesystem;
namespace {

struct MeasuredTokens {
  data::TokenWindows windows;
  std::string path;
  std::string split;  // "all", "train", "dev"
  std::string words;  // the same for people
};

// A run's own window; of a foreign model a usual one.
int64_t context_of(const std::optional<TrainConfig>& trained, const LmConfig& config) {
  constexpr int64_t kUsual = 1024;
  return trained ? trained->context : std::min(kUsual, config.max_position_embeddings);
}

MeasuredTokens measured_tokens(const fs::path& model, const LanguageModel& saved,
                               const std::string& given, const std::string& given_split) {
  const auto trained = recorded_config(model);
  if (given.empty() && !trained)
    throw InvalidArgument("--data is missing; give the texts to evaluate " + model.string() +
                          " on");
  if (given_split == "test") throw InvalidArgument("--split is test; give train or dev");
  const std::string path = given.empty() ? trained->data : given;
  const int64_t context = context_of(trained, saved.model->config());
  const bool all = given_split.empty() && !given.empty() && fs::is_regular_file(given);
  data::LanguageTexts texts = all ? data::language_texts_of_file(path) : data::language_texts(path);
  const std::string split = all ? "all" : given_split.empty() ? "dev" : given_split;
  const auto& chosen = split == "dev" ? texts.dev : texts.train;
  const auto windows = data_errors_of(
      path, [&] { return evaluation_windows(saved.tokenizer, chosen, texts.rows, context); });
  if (windows.targets() == 0)
    throw DataError(path + ": has nothing to predict; give texts of two tokens or more");
  std::string words = all ? "all of " + path : "the " + split + " set of " + path;
  if (!all && texts.dev_of_train) words += ", by the split of its training file";
  return {windows, path, split, std::move(words)};
}

// The part of `text` that no further token changes: its last character may not be whole yet.
std::string_view settled(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text;
}

// Writes text as its tokens come.
class TokenPrinter {
 public:
  // Behind `prompt`: some tokenizers leave out a space where a text begins.
  TokenPrinter(const tokenizers::LmTokenizer& tokenizer, std::vector<int32_t> prompt)
      : tokenizer_(tokenizer),
        ids_(std::move(prompt)),
        prompt_ids_(ids_.size()),
        prompt_(tokenizer.decode(ids_)) {}

  void add(int64_t token) {
    ids_.push_back(static_cast<int32_t>(token));
    const std::string all = text();
    show(settled(all));
  }
  std::string finish() {
    std::string all = text();
    show(all);
    return all;
  }

 private:
  std::string text() const {
    const std::string all = tokenizer_.decode(ids_);
    if (all.starts_with(prompt_)) return all.substr(prompt_.size());
    return tokenizer_.decode(std::span(ids_).subspan(prompt_ids_));
  }
  void show(std::string_view all) {
    if (all.size() <= shown_) return;
    std::cout << all.substr(shown_) << std::flush;
    shown_ = all.size();
  }

  const tokenizers::LmTokenizer& tokenizer_;
  std::vector<int32_t> ids_;  // the prompt's first
  size_t prompt_ids_;
  std::string prompt_;
  size_t shown_ = 0;  // bytes
};

}  // namespace

std::optional<fs::path> find_language_model(const fs::path& path) {
  return find_model(path, is_language_model);
}

int eval_language(const fs::path& model, const std::string& given, const std::string& split,
                  const std::string& json) {
  LanguageModel saved = load_language_model(model);
  const MeasuredTokens measured = measured_tokens(model, saved, given, split);
  Communicator comm = init();
  const Evaluation evaluation = evaluate_lm(saved.model, measured.windows, comm);
  if (comm.rank() != 0) return 0;
  const double perplexity = std::exp(evaluation.loss);
  std::cout << "Perplexity " << fixed(perplexity, 3) << ", loss " << fixed(evaluation.loss, 4)
            << ", next token right " << percent(evaluation.accuracy, 2) << ", on "
            << evaluation.samples << " tokens (" << measured.words << ")\n"
            << std::flush;
  write_json(json, {{"checkpoint", model.string()},
                    {"data", measured.path},
                    {"split", measured.split},
                    {"samples", evaluation.samples},
                    {"accuracy", evaluation.accuracy},
                    {"loss", evaluation.loss},
                    {kPerplexity, perplexity},
                    {"context", measured.windows.length()}});
  return 0;
}

int continue_prompts(const fs::path& path, const Continuations& asked, const std::string& json) {
  LanguageModel saved = load_language_model(path);
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
  for (const std::string& prompt : asked.prompts) {
    const auto words = data_errors_of("--prompt", [&] { return saved.tokenizer.encode(prompt); });
    std::vector<int32_t> ids = saved.tokenizer.begin_of_text();
    ids.insert(ids.end(), words.begin(), words.end());
    TokenPrinter printer(saved.tokenizer, ids);
    std::cout << prompt << std::flush;
    const auto begin = std::chrono::steady_clock::now();
    const auto tokens =
        generate(saved.model, {ids.begin(), ids.end()},
                 {.max_new_tokens = asked.max_new_tokens,
                  .sampling = asked.sampling,
                  .stop_ids = saved.model->config().eos_token_ids,
                  .beyond_positions = true,
                  .on_token = [&](int64_t token) { return printer.add(token), true; }});
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const std::string text = printer.finish();
    if (!text.ends_with('\n')) std::cout << "\n";
    answers.push_back({{"checkpoint", path.string()},
                       {"prompt", prompt},
                       {"text", text},
                       {"tokens", tokens},
                       {"seed", asked.sampling.seed},
                       {"tokens_per_s", static_cast<double>(tokens.size()) / seconds.count()}});
  }
  std::cout << std::flush;
  write_json(json, answers);
  return 0;
}

}  // namespace lockstep::engine
