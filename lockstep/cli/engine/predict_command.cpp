#include "lockstep/cli/engine/predict_command.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/cli/engine/image_file.h"
#include "lockstep/cli/engine/saved_model.h"
#include "lockstep/core/errors.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/report/table.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kSide = 28;

// The logits: for this model log-probabilities.
std::vector<double> logits_of(SavedModel& saved, const GreyImage& image, const std::string& file) {
  if (image.height != kSide || image.width != kSide) {
    throw DataError(file + ": the picture is " + std::to_string(image.height) + "x" +
                    std::to_string(image.width) + "; the model takes 28x28");
  }
  const at::Tensor pixels = at::empty({1, 1, kSide, kSide}, at::kByte);
  std::copy(image.pixels.begin(), image.pixels.end(), pixels.mutable_data_ptr<uint8_t>());
  // The training data's own way of preprocessing, so that both round alike.
  const data::ImageDataset dataset(pixels, at::empty({1}, at::kLong).zero_(), {saved.config.mean},
                                   {saved.config.stddev});
  const at::NoGradGuard no_grad;
  const at::Tensor output = saved.model->forward(dataset.batch(std::vector<int64_t>{0}).input)
                                .to(at::kDouble)
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

}  // namespace

int predict_command(const Arguments& arguments) {
  return run_guarded("predict", [&] {
    CLI::App app("What a checkpoint says a picture is.", "lockstep predict");
    std::string checkpoint, file, json_path;
    int64_t index = 0;
    app.add_option("--checkpoint", checkpoint,
                   "checkpoint, or the output directory of a training run")
        ->required();
    app.add_option("--file", file, "a picture of 28x28: an idx file (plain or .gz) or a PGM file")
        ->required();
    app.add_option("--index", index, "which picture of an idx file, from 0 [0]");
    app.add_option("--json", json_path, "also write the result to this file");
    parse(app, arguments);
    check_writable(json_path);
    SavedModel saved = load_model(checkpoint);
    const GreyImage image = read_image(file, index);
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

}  // namespace lockstep::engine
