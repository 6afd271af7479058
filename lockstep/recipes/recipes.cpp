#include "lockstep/recipes/recipes.h"

#include <algorithm>
#include <span>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all{
      {.name = "mnist",
       .kind = RecipeKind::kImages,
       .trains = "a convolutional network on pictures",
       .files = "MNIST's four idx files",
       .built_in = "digits",
       .own = "pictures",
       .held_out = "test",
       .counted = "samples",
       .channels = 1,
       .side = 28,
       .classes = 10},
      {.name = "cifar",
       .kind = RecipeKind::kImages,
       .trains = "a convolutional network on pictures",
       .files = "CIFAR-10's .bin files",
       .built_in = "shapes",
       .own = "pictures",
       .held_out = "test",
       .counted = "samples",
       .channels = 3,
       .side = 32,
       .classes = 10},
      {.name = "text",
       .kind = RecipeKind::kTexts,
       .trains = "BERT to put texts into classes",
       .subject = "BERT",
       .files = "labelled texts (train.json, .jsonl, .tsv or .csv)",
       .built_in = "sentences",
       .own = "texts",
       .held_out = "dev",
       .counted = "samples"},
      {.name = "lm",
       .kind = RecipeKind::kLanguage,
       .trains = "a decoder to go on with a text",
       .subject = "language model",
       .files = "texts (train.txt, .jsonl, .json, .tsv or .csv)",
       .built_in = "sentences",
       .own = "texts",
       .held_out = "dev",
       .counted = "tokens"},
  };
  return all;
}

const Recipe* find_recipe(std::string_view name) {
  const auto& all = recipes();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Recipe& recipe) { return recipe.name == name; });
  return found == all.end() ? nullptr : &*found;
}

namespace {

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.push_back(recipe.name);
  return names;
}

}  // namespace

const Recipe& recipe_of(std::string_view name) {
  if (const Recipe* recipe = find_recipe(name)) return *recipe;
  const std::string near = nearest_name(name, recipe_names());
  throw InvalidArgument("there is no recipe '" + std::string(name) + "'" +
                        (near.empty() ? "" : " (did you mean " + near + "?)") + "; choose " +
                        recipe_names_text());
}

std::string recipe_names_text() {
  const auto names = recipe_names();
  return joined(std::span(names).first(names.size() - 1)) + " or " + names.back();
}

}  // namespace lockstep::inline v0
