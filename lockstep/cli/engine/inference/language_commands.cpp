#include "lockstep/cli/engine/inference/language_commands.h"
#include "lockstep/cli/engine/device_option.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/inference/saved_model.h"
#include "lockstep/cli/printable_lines.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/data/language_texts.h"
#include "lockstep/model/sampling.h"
#include "lockstep/pretrained/language_model.h"
#include "lockstep/recipes/lm_data.h"
#include "lockstep/recipes/lm_evaluation.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/report/table.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

struct MeasuredTokens {
  data::TokenWindows windows;
  std::string path;
  std::string split;  // "all", "train", "dev"
  std::string words;  // the same for people
};

// The window of a run, or a usual one for a foreign model.
int64_t context_of(const std::optional<TrainConfig>& trained, const LmConfig& config) {
  constexpr int64_t kUsual = 1024;
  return std::min(trained ? trained->context : kUsual, config.max_position_embeddings);
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

// The part of `text` that no further token changes, since its last character may be incomplete.
std::string_view settled(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text;
}

// Writes text while its tokens arrive.
class TokenPrinter {
 public:
  // It decodes behind `prompt`, because some tokenizers leave out a space where a text begins.
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
    // A vocabulary comes from a file, which may hold a terminal's commands.
    std::cout << printable_lines(all.substr(shown_)) << std::flush;
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
  return find_in_run(path, is_language_model);
}

int eval_language(const fs::path& model, const std::string& given, const std::string& split,
                  const std::string& device, const std::string& json) {
  LanguageModel saved = load_language_model(model);
  const MeasuredTokens measured = measured_tokens(model, saved, given, split);
  Communicator comm = join_with(*saved.model, device);
  const Evaluation evaluation = evaluate_lm(saved.model, measured.windows, comm);
  if (comm.rank() != 0) return 0;
  const double perplexity = std::exp(evaluation.loss);
  std::cout << "Perplexity " << fixed(perplexity, 3) << ", loss " << fixed(evaluation.loss, 4)
            << ", next token right " << percent(evaluation.accuracy, 2) << ", on "
            << evaluation.samples << " tokens (" << printable(measured.words) << ")\n"
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

namespace {

template <typename T>
T first_of(const std::optional<T>& asked, const std::optional<T>& of_the_model, T usual) {
  return asked ? *asked : of_the_model.value_or(usual);
}

GenerateOptions options_of(const Continuations& asked, const GenerationConfig& generation,
                           const LmConfig& config) {
  constexpr int64_t kUsual = 200;
  const SamplingOptions usual;
  const auto& ends = generation.eos_token_ids;
  return {.max_new_tokens = first_of(asked.max_new_tokens, generation.max_new_tokens, kUsual),
          .sampling = {.temperature =
                           first_of(asked.temperature, generation.temperature, usual.temperature),
                       .top_k = first_of(asked.top_k, generation.top_k, usual.top_k),
                       .top_p = first_of(asked.top_p, generation.top_p, usual.top_p),
                       .seed = asked.seed},
          .stop_ids = ends.empty() ? config.eos_token_ids : ends,
          .beyond_positions = true};
}

std::vector<int32_t> prompt_ids(const tokenizers::LmTokenizer& tokenizer,
                                const std::string& prompt) {
  std::vector<int32_t> ids = tokenizer.begin_of_text();
  const auto words = data_errors_of("--prompt", [&] { return tokenizer.encode(prompt); });
  ids.insert(ids.end(), words.begin(), words.end());
  if (ids.empty())
    throw InvalidArgument(
        "--prompt is empty, and this model's texts do not begin with a token of "
        "their own; give a text");
  return ids;
}

}  // namespace

void check(const Continuations& asked) {
  const auto refuse = [](const char* option, double value, const char* takes) {
    throw InvalidArgument(std::string(option) + " is " + nlohmann::json(value).dump() + "; give " +
                          takes);
  };
  if (asked.temperature && !(*asked.temperature >= 0 && std::isfinite(*asked.temperature)))
    refuse("--temperature", *asked.temperature, "0 or more");
  if (asked.top_p && !(*asked.top_p > 0 && *asked.top_p <= 1))
    refuse("--top-p", *asked.top_p, "more than 0, and at most 1");
  if (asked.top_k.value_or(0) < 0)
    throw InvalidArgument("--top-k is " + std::to_string(*asked.top_k) +
                          "; give 0, for all, or more");
  if (asked.max_new_tokens.value_or(1) < 1)
    throw InvalidArgument("--max-new-tokens is " + std::to_string(*asked.max_new_tokens) +
                          "; give 1 or more");
}

int continue_prompts(const fs::path& path, const Continuations& asked, const std::string& device,
                     const std::string& json) {
  LanguageModel saved = load_language_model(path);
  bring_to_device(*saved.model, device);
  GenerateOptions options = options_of(asked, saved.generation, saved.model->config());
  std::vector<std::vector<int32_t>> all_ids;  // all prompts are encoded before anything is printed
  for (const std::string& prompt : asked.prompts)
    all_ids.push_back(prompt_ids(saved.tokenizer, prompt));
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
  for (size_t i = 0; i < all_ids.size(); ++i) {
    const std::string& prompt = asked.prompts[i];
    const std::vector<int32_t>& ids = all_ids[i];
    TokenPrinter printer(saved.tokenizer, ids);
    std::cout << printable_lines(prompt) << std::flush;
    const auto begin = std::chrono::steady_clock::now();
    options.on_token = [&](int64_t token) { return printer.add(token), true; };
    const auto tokens = generate(saved.model, {ids.begin(), ids.end()}, options);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const std::string text = printer.finish();
    if (!text.ends_with('\n')) std::cout << "\n";
    answers.push_back({{"checkpoint", path.string()},
                       {"prompt", prompt},
                       {"text", text},
                       {"tokens", tokens},
                       {"seed", asked.seed},
                       {"tokens_per_s", static_cast<double>(tokens.size()) / seconds.count()}});
  }
  std::cout << std::flush;
  write_json(json, answers);
  return 0;
}

}  // namespace lockstep::inline v0::engine
