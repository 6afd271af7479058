// A layer of torch::nn as the expression that makes it in Python.
#pragma once

#include <optional>
#include <string>

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0::internal {

// "nn.Linear(in_features=4, out_features=8, bias=True)"; nullopt for a module of another type than those that
// module_to_python() knows. A class that derives from one is another type. Pure.
std::optional<std::string> layer_text(const torch::nn::Module& module);

// A text as Python writes it, with its quotes.
std::string python_string(const std::string& text);

}  // namespace lockstep::inline v0::internal
