#include "lockstep/cli/engine/inference/eval_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/cli/engine/device_option.h"
#include "lockstep/cli/engine/inference/language_commands.h"
#include "lockstep/cli/engine/inference/saved_model.h"
#include "lockstep/cli/engine/inference/text_commands.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/recipes/image_data.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/report/table.h"
#include "lockstep/train/supervised_task.h"

namespace lockstep::inline v0::engine {
namespace {

struct ClassRow {
  int64_t samples = 0;  // this class's
  int64_t correct = 0;
  int64_t predicted = 0;  // samples predicted as this class
  double accuracy() const {
    return samples > 0 ? static_cast<double>(correct) / static_cast<double>(samples) : 0;
  }
  double precision() const {
    return predicted > 0 ? static_cast<double>(correct) / static_cast<double>(predicted) : 0;
  }
};

std::vector<ClassRow> by_class(const Evaluation& evaluation) {
  const auto& confusion = evaluation.confusion;
  std::vector<ClassRow> rows(confusion.size());
  for (size_t truth = 0; truth < confusion.size(); ++truth) {
    for (size_t guess = 0; guess < confusion.size(); ++guess) {
      rows[truth].samples += confusion[truth][guess];
      rows[guess].predicted += confusion[truth][guess];
    }
    rows[truth].correct = confusion[truth][truth];
  }
  return rows;
}

// The data to evaluate on.
struct MeasuredPictures {
  ImageData data;
  std::string path;
  std::string split = "test";
  std::string words = {};  // the same for people
};

// `path` as it was given; empty: the data that the model was trained on.
MeasuredPictures measured_pictures(const TrainConfig& config, const std::string& path) {
  if (path == recipe_of(config.recipe).built_in)
    return {built_in_test_data(config), path, "test", "the test set of the built-in " + path};
  const std::string& from = path.empty() ? config.data : path;
  const bool file = std::filesystem::is_regular_file(from);
  // The part of the training file that training left out.
  const bool part = file && path.empty();
  return {load_image_data(config, from, part ? ImageParts::kAll : ImageParts::kTest), from,
          file && !part ? "all" : "test",
          part   ? "the last tenth of " + from + ", which was not trained on"
          : file ? "all of " + from
                 : "the test set of " + from};
}

std::string class_name(const ImageData& data, size_t index) {
  return index < data.classes.size() ? data.classes[index] : std::to_string(index);
}

void print(const Evaluation& evaluation, const std::vector<ClassRow>& rows,
           const MeasuredPictures& measured) {
  Table table({{"class"}, {"samples"}, {"correct"}, {"accuracy"}, {"precision"}});
  for (size_t i = 0; i < rows.size(); ++i) {
    table.add({class_name(measured.data, i), std::to_string(rows[i].samples),
               std::to_string(rows[i].correct), percent(rows[i].accuracy(), 2),
               percent(rows[i].precision(), 2)});
  }
  std::cout << table.str() << "\nAccuracy " << percent(evaluation.accuracy, 2) << ", loss "
            << fixed(evaluation.loss, 4) << ", on " << evaluation.samples << " samples ("
            << printable(measured.words) << ")\n"
            << std::flush;
}

}  // namespace

int eval_command(const Arguments& arguments) {
  return run_guarded("eval", [&] {
    CLI::App app(
        "The accuracy of a checkpoint on a test set, in all and by class; of a language model "
        "the perplexity.",
        "lockstep eval");
    std::string checkpoint, data_path, split, device, json_path;
    app.add_option(
           "--checkpoint", checkpoint,
           "checkpoint, the output directory of a training run, or a BERT or Llama of Hugging "
           "Face's form")
        ->required()
        ->type_name("DIR");
    app.add_option("--data", data_path,
                   "data as for `lockstep train` [those it was trained on], or texts: of "
                   "a directory its test or dev set, of a file all there is in it")
        ->type_name("PATH");
    app.add_option("--split", split,
                   "of texts: a part of the data, as training divides them [test, or dev]")
        ->check(CLI::IsMember({"train", "dev", "test"}));
    add_device_option(app, device);
    app.add_option("--json", json_path, "also write the result to this file")->type_name("FILE");
    cli::add_example(app, {"lockstep eval --checkpoint runs/mnist"});
    parse(app, arguments);
    if (launch::job_environment().rank == 0) check_result_files({json_path});
    if (const auto text = find_text_model(checkpoint))
      return eval_text(*text, data_path, split, device, json_path);
    if (const auto language = find_language_model(checkpoint))
      return eval_language(*language, data_path, split, device, json_path);
    if (!split.empty()) throw InvalidArgument("--split is for texts; pictures have a test set");
    SavedModel saved = load_model(checkpoint);
    const MeasuredPictures measured = measured_pictures(saved.config, data_path);
    Communicator comm = join_with(*saved.model, device);
    constexpr int64_t kBatch = 500;
    const Evaluation evaluation = evaluate_classifier(
        saved.model, measured.data.test, comm, recipe_of(saved.config.recipe).classes, kBatch);
    if (comm.rank() != 0) return 0;
    const auto rows = by_class(evaluation);
    print(evaluation, rows, measured);
    nlohmann::ordered_json classes = nlohmann::ordered_json::array();
    for (size_t i = 0; i < rows.size(); ++i) {
      classes.push_back({{"class", i},
                         {"name", class_name(measured.data, i)},
                         {"samples", rows[i].samples},
                         {"correct", rows[i].correct},
                         {"accuracy", rows[i].accuracy()},
                         {"precision", rows[i].precision()}});
    }
    write_json(json_path, {{"checkpoint", saved.path.string()},
                           {"data", measured.path},
                           {"split", measured.split},
                           {"samples", evaluation.samples},
                           {"accuracy", evaluation.accuracy},
                           {"loss", evaluation.loss},
                           {"classes", classes},
                           {"confusion", evaluation.confusion}});
    return 0;
  });
}

}  // namespace lockstep::inline v0::engine
