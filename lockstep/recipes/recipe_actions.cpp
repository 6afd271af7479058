#include "lockstep/recipes/recipe_actions.h"

#include <utility>

#include "lockstep/data/sentences.h"
#include "lockstep/recipes/image_data.h"
#include "lockstep/recipes/image_training.h"
#include "lockstep/recipes/lm_training.h"
#include "lockstep/recipes/text_training.h"

namespace lockstep::inline v0 {
namespace {

void generate_texts(const Recipe&, const std::filesystem::path& directory) {
  data::generate_sentences(directory);
}

void generate_images(const Recipe& recipe, const std::filesystem::path& directory) {
  generate_image_data(recipe.name, directory);
}

constexpr RecipeActions kImageActions{.train = train_images,
                                      .check_model = check_init_from,
                                      .generate = generate_images,
                                      .validate = validate_image_data};
constexpr RecipeActions kTextActions{.train = train_texts,
                                     .check_model = check_text_model,
                                     .generate = generate_texts,
                                     .validate = validate_text_input};
constexpr RecipeActions kLmActions{.train = train_lm,
                                   .check_model = check_lm_model,
                                   .generate = generate_texts,
                                   .validate = validate_lm_input};

}  // namespace

const RecipeActions& actions_of(const Recipe& recipe) {
  switch (recipe.kind) {
    case RecipeKind::kTexts:
      return kTextActions;
    case RecipeKind::kLanguage:
      return kLmActions;
    case RecipeKind::kImages:
      break;
  }
  return kImageActions;
}

TrainResult train_recipe(Communicator& comm, const TrainConfig& config,
                         const TrainRunOptions& options) {
  return actions_of(recipe_of(config.recipe)).train(comm, config, options);
}

}  // namespace lockstep::inline v0
