#include "lockstep/recipes/image_training.h"

#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <chrono>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/text.h"
#include "lockstep/data/augment.h"
#include "lockstep/parallel/ddp/sync_batch_norm.h"
#include "lockstep/recipes/image_data.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/supervised_recipe.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/text_loss.h"

namespace lockstep::inline v0 {
namespace {

void load_init_from(ImageModel& model, const TrainConfig& config) {
  try {
    load(model, checkpoint_meant(config.init_from));
  } catch (const CheckpointError& error) {
    throw InvalidArgument("init_from: " + std::string(error.what()));
  }
}

ImageModel start_model(const TrainConfig& config, Communicator& comm) {
  ImageModel model =
      drawn_from_seed(comm, config.seed, [&config] { return make_image_model(config); });
  if (!config.init_from.empty()) load_init_from(model, config);
  if (config.sync_batch_norm) {
    if (comm.generation() > 0)
      throw InvalidArgument(
          "sync_batch_norm: its layers keep the ranks that they were made with, and cannot follow "
          "where ranks are replaced; leave out --on-failure replace");
    convert_sync_batch_norm(model, comm);
  }
  return model;
}

struct ImageLoss {
  template <typename Model>
  LossOutput operator()(Model& model, const data::Batch& batch) const {
    const at::Tensor output = model(batch.input);
    return {torch::nll_loss(output, batch.target), output, batch.target};
  }
};

std::vector<std::string> numbers_to(int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

// One of the test set's pictures.
std::string question_for(const TrainConfig& config, int64_t pictures) {
  constexpr int64_t kPicture = 7;
  return "--file " + shell_word(path_from_here(example_file(config))) + " --index " +
         std::to_string(std::min(pictures - 1, kPicture));
}

}  // namespace

TrainResult train_images(Communicator& comm, const TrainConfig& config,
                         const TrainRunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_ranks(comm, config);
  const ImageData data = load_image_data(config, config.data);
  constexpr int64_t kPadding = 4;
  const data::AugmentedImages train(
      data.train,
      {.crop_padding = config.augment ? kPadding : 0, .flip = config.augment, .seed = config.seed});
  const int64_t classes = recipe_of(config.recipe).classes;
  const SupervisedRecipe<ImageModel, data::AugmentedImages, ImageLoss> recipe{
      .train = train,
      .held_out = data.test.size(),
      .make = [&] { return start_model(config, comm); },
      .evaluate =
          [&](ImageModel& model, Communicator& ranks, const auto& /*autocast*/) {
            constexpr int64_t kBatch = 500;
            return evaluate_classifier(model, data.test, ranks, classes, kBatch);
          },
      .labels = numbers_to(classes),
      .question = question_for(config, data.test.size())};
  return train_supervised(comm, config, options, start, recipe);
}

ImageModel make_image_model(const TrainConfig& config) {
  const Recipe& recipe = recipe_of(config.recipe);
  return ImageModel(ImageModelOptions{.name = config.model,
                                      .channels = recipe.channels,
                                      .side = recipe.side,
                                      .classes = recipe.classes,
                                      .dropout1 = config.dropout1,
                                      .dropout2 = config.dropout2});
}

void check_init_from(const TrainConfig& config) {
  if (config.init_from.empty()) return;
  ImageModel model = make_image_model(config);
  load_init_from(model, config);
}

}  // namespace lockstep::inline v0
