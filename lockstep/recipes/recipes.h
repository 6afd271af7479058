// The recipes of `lockstep train`: their names and data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The kind of data that a recipe trains on.
enum class RecipeKind { kImages, kTexts, kLanguage };

// A training of `lockstep train`, in words.
struct Recipe {
  std::string name;          // of the command: "mnist"
  RecipeKind kind;           // of its data
  std::string trains;        // in a sentence: "a convolutional network on pictures"
  std::string subject = {};  // the kind of model; empty: its name says it
  std::string files;         // the files that --data takes: "MNIST's four idx files"
  std::string built_in;      // the word for --data that means the built-in data set: "digits"
  std::string own = {};      // the user's data, if `files` does not say it: "pictures"
  std::string held_out;      // the data of evaluations: "test", "dev"
  std::string counted;       // the unit of training data: "samples", "tokens"
  // For images. Texts have their own classes.
  int64_t channels = 0;
  int64_t side = 0;  // pixels
  int64_t classes = 0;
};

// The sizes of a recipe's data.
struct RecipeCounts {
  int64_t train = 0;     // samples, texts or windows
  int64_t held_out = 0;  // to evaluate on
};

const std::vector<Recipe>& recipes();

// nullptr if there is no recipe of that name.
const Recipe* find_recipe(std::string_view name);
// Throws: InvalidArgument that lists the names.
const Recipe& recipe_of(std::string_view name);
// "mnist, cifar, text or lm".
LOCKSTEP_API std::string recipe_names_text();

}  // namespace lockstep::inline v0
