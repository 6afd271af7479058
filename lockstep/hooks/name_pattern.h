// Patterns for the names of modules and their parameters: a name, or one in which a * stands for
// one part between dots: "model.layers.*".
#pragma once

#include <string_view>

namespace lockstep::inline v0 {

bool is_named(std::string_view name, std::string_view pattern);
// The same, or a module that contains it matches: "model.layers.0.up.weight" is below
// "model.layers.*".
bool is_named_or_below(std::string_view name, std::string_view pattern);

}  // namespace lockstep::inline v0
