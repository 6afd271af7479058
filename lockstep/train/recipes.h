// The recipes of `lockstep train`: what each is called, what data it takes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class RecipeKind { kImages, kTexts };

struct Recipe {
  std::string name;      // of the command: "mnist"
  RecipeKind kind;       // what it classifies
  std::string files;     // what --data takes: "MNIST's four idx files"
  std::string built_in;  // the word for --data that means the data set made here: "digits"
  // Of images; texts bring their classes with them.
  int64_t channels = 0;
  int64_t side = 0;  // pixels
  int64_t classes = 0;
};

const std::vector<Recipe>& recipes();

// nullptr if there is no recipe of that name.
const Recipe* find_recipe(std::string_view name);
// Throws InvalidArgument that lists the names.
const Recipe& recipe_of(std::string_view name);
// "mnist, cifar or text".
std::string recipe_names_text();

}  // namespace lockstep
