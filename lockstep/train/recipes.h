// The recipes of `lockstep train`: what each is called, what data it takes, what its images are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct Recipe {
  std::string name;      // of the command: "mnist"
  std::string files;     // what --data takes: "MNIST's four idx files"
  std::string built_in;  // the word for --data that means the data set made here: "digits"
  int64_t channels;      // of the images
  int64_t side;          // pixels
  int64_t classes;
};

const std::vector<Recipe>& recipes();

// nullptr if there is no recipe of that name.
const Recipe* find_recipe(std::string_view name);
// Throws InvalidArgument that lists the names.
const Recipe& recipe_of(std::string_view name);
// "mnist or cifar".
std::string recipe_names_text();

}  // namespace lockstep
