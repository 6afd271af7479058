#include "lockstep/cli/engine/inference/predict_command.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/cli/engine/device_option.h"
#include "lockstep/cli/engine/inference/image_file.h"
#include "lockstep/cli/engine/inference/language_commands.h"
#include "lockstep/cli/engine/inference/saved_model.h"
#include "lockstep/cli/engine/inference/text_commands.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/flat/module_device.h"
#include "lockstep/recipes/image_data.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/report/table.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::inline v0::engine {
namespace {

std::string shape_text(int64_t channels, int64_t height, int64_t width) {
  return std::string(channels == 1 ? "grey" : "colour") + " and " + std::to_string(height) + "x" +
         std::to_string(width);
}

// Returns the logits, which are log-probabilities for these models.
std::vector<double> logits_of(SavedModel& saved, const Picture& image, const std::string& file) {
  const Recipe& recipe = recipe_of(saved.config.recipe);
  if (image.channels != recipe.channels || image.height != recipe.side ||
      image.width != recipe.side) {
    throw DataError(file + ": the picture is " +
                    shape_text(image.channels, image.height, image.width) + "; the model takes " +
                    shape_text(recipe.channels, recipe.side, recipe.side));
  }
  const at::Tensor pixels = at::empty({1, image.channels, image.height, image.width}, at::kByte);
  std::copy(image.pixels.begin(), image.pixels.end(), pixels.mutable_data_ptr<uint8_t>());
  // It preprocesses as for the training data, so that both round alike.
  const data::ImageDataset dataset = preprocessed(saved.config, pixels);
  const at::NoGradGuard no_grad;
  const at::Tensor input = dataset.batch(std::vector<int64_t>{0}).input;
  const at::Tensor output = saved.model->forward(input.to(device_of(*saved.model)))
                                .to(at::kCPU, at::kDouble)
                                .contiguous();
  const double* first = output.const_data_ptr<double>();
  return {first, first + output.numel()};
}

std::vector<double> softmax(const std::vector<double>& logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  std::vector<double> values;
  double sum = 0;
  for (const double logit : logits) sum += values.emplace_back(std::exp(logit - most));
  for (double& value : values) value /= sum;
  return values;
}

// The path may be a link that a copy has left out.
void check_exists(const std::filesystem::path& path) {
  if (!std::filesystem::exists(checkpoint_meant(path)))
    throw InvalidArgument(path.string() + " does not exist");
}

// Empty if the first is not a text model's.
std::vector<std::filesystem::path> text_models(const std::vector<std::string>& checkpoints) {
  std::vector<std::filesystem::path> models;
  for (const std::string& checkpoint : checkpoints) {
    const auto model = find_text_model(checkpoint);
    if (!model) check_exists(checkpoint);
    if (!model && models.empty()) return {};
    if (!model) throw InvalidArgument(checkpoint + ": is no checkpoint of a text classifier");
    models.push_back(*model);
  }
  return models;
}

void check_utf8(const std::string& option, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    if (const auto at = malformed_utf8(text)) {
      throw InvalidArgument(option + " is not UTF-8 (at byte " + std::to_string(*at) +
                            "); give it in UTF-8");
    }
  }
}

std::filesystem::path only_language_model(const std::vector<std::string>& checkpoints) {
  if (checkpoints.size() > 1) throw InvalidArgument("give one checkpoint for --prompt");
  const std::string& checkpoint = checkpoints.front();
  if (const auto model = find_language_model(checkpoint)) return *model;
  check_exists(checkpoint);
  throw InvalidArgument(checkpoint + ": is no language model; leave --prompt out");
}

}  // namespace

int predict_command(const Arguments& arguments) {
  return run_guarded("predict", [&] {
    CLI::App app("What a checkpoint says a picture or a text is; how a language model goes on.",
                 "lockstep predict");
    std::vector<std::string> checkpoints, texts;
    Continuations asked;
    std::string file, device, json_path;
    int64_t index = 0;
    app.add_option("--checkpoint", checkpoints,
                   "checkpoint, or the output directory of a training run; several of texts")
        ->required()
        ->type_name("DIR");
    app.add_option("--text", texts, "a text; several are taken");
    app.add_option("--file", file,
                   "a picture of the size the model takes: an idx or CIFAR-10 file (plain or .gz), "
                   "PGM or PPM; or texts as for training, or a .txt of one a line")
        ->type_name("FILE");
    app.add_option("--index", index, "which picture of an idx or CIFAR-10 file, from 0 [0]");
    app.add_option("--prompt", asked.prompts,
                   "a beginning, for a language model; several are taken");
    app.add_option("--max-new-tokens", asked.max_new_tokens,
                   "tokens that follow, at most [the model's generation_config.json, or 200]");
    app.add_option("--temperature", asked.temperature,
                   "logits are divided by it; 0: always the likeliest token [the model's, or 1]");
    app.add_option("--top-k", asked.top_k,
                   "only the likeliest so many; 0: all [the model's, or 0]");
    app.add_option(
        "--top-p", asked.top_p,
        "only the fewest likeliest that together have this probability [the model's, or 1]");
    app.add_option("--seed", asked.seed, "of the tokens' draws [0]");
    add_device_option(app, device);
    app.add_option("--json", json_path, "also write the result to this file")->type_name("FILE");
    cli::add_example(app, {"lockstep predict --checkpoint runs/text --text 'a fine film'",
                           "lockstep predict --checkpoint runs/lm --prompt 'once upon'"});
    parse(app, arguments);
    check_result_files({json_path});
    check_utf8("--text", texts);
    check_utf8("--prompt", asked.prompts);
    check(asked);
    if (!asked.prompts.empty())
      return continue_prompts(only_language_model(checkpoints), asked, device, json_path);
    if (const auto models = text_models(checkpoints); !models.empty())
      return predict_texts({.models = models, .texts = texts, .file = file}, device, json_path);
    if (find_language_model(checkpoints.front()))
      throw InvalidArgument(checkpoints.front() + ": is a language model; give --prompt");
    if (!texts.empty())
      throw InvalidArgument(checkpoints.front() + ": is no checkpoint of a text classifier");
    if (file.empty()) throw InvalidArgument("--file is missing; give a picture");
    if (checkpoints.size() > 1) throw InvalidArgument("give one checkpoint for a picture");
    SavedModel saved = load_model(checkpoints.front());
    bring_to_device(*saved.model, device);
    const Picture image = read_image(file, index);
    const auto logits = logits_of(saved, image, file);
    const auto probabilities = softmax(logits);
    const auto label = std::max_element(logits.begin(), logits.end()) - logits.begin();

    std::cout << draw_image(image) << "\nLabel " << label << ", probability "
              << percent(probabilities[static_cast<size_t>(label)], 2) << "\n\n";
    Table table({{"label"}, {"probability"}, {"logit"}});
    for (size_t i = 0; i < logits.size(); ++i) {
      table.add({std::to_string(i), percent(probabilities[i], 2), fixed(logits[i], 4)});
    }
    std::cout << table.str() << std::flush;
    write_json(json_path, {{"checkpoint", saved.path.string()},
                           {"file", file},
                           {"index", index},
                           {"label", label},
                           {"probabilities", probabilities},
                           {"logits", logits}});
    return 0;
  });
}

}  // namespace lockstep::inline v0::engine
