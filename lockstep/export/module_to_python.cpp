#include "lockstep/export/module_to_python.h"

#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/core/utf8.h"
#include "lockstep/export/layer_text.h"

namespace lockstep::inline v0 {
namespace {

constexpr std::array<std::string_view, 35> kKeywords = {
    "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
    "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
    "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
    "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};

void check_name(const std::string& name) {
  const auto letter = [](char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; };
  const bool is_name =
      !name.empty() && (letter(name[0]) || name[0] == '_') &&
      std::all_of(name.begin(), name.end(),
                  [&](char c) { return letter(c) || c == '_' || (c >= '0' && c <= '9'); }) &&
      std::find(kKeywords.begin(), kKeywords.end(), name) == kKeywords.end();
  // Those that the text has already.
  if (is_name && name != "make" && name != "nn" && name != "OrderedDict") return;
  throw InvalidArgument("module_to_python: '" + printable(name) +
                        "' is no name for a Python class here; give one such as Net");
}

// What kind of container a module is; nullptr: none.
const char* container_kind(const torch::nn::Module& module, const TwinOptions& options) {
  if (typeid(module) == typeid(torch::nn::SequentialImpl)) return "Sequential";
  if (typeid(module) == typeid(torch::nn::ModuleListImpl)) return "ModuleList";
  if (typeid(module) == typeid(torch::nn::ModuleDictImpl)) return "ModuleDict";
  const auto& own = options.in_order;
  if (dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr &&
      std::find(own.begin(), own.end(), module.name()) != own.end())
    return "Sequential";
  return nullptr;
}

// What to do about a module that cannot be written.
std::string advice_for(const torch::nn::Module& module) {
  if (typeid(module) == typeid(torch::nn::FunctionalImpl))
    return ", whose function has no name (use a module, such as torch::nn::ReLU)";
  if (dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr)
    return ", a Sequential with a forward of its own (name it in TwinOptions::in_order if that only calls its modules)";
  return ", which has a forward of its own or is not known";
}

class TwinWriter {
 public:
  explicit TwinWriter(const TwinOptions& options) : options_(options) {}

  // "nn.Sequential(OrderedDict([...]))" or a layer's; what cannot be written goes to `problems`.
  std::string expression(const torch::nn::Module& module, const std::string& path, int depth) {
    if (container_kind(module, options_) != nullptr)
      return "nn.Sequential(" + children(module, path, depth) + ")";
    if (const auto layer = internal::layer_text(module)) return *layer;
    problems.push_back("'" + path + "' is a " + module.name() + advice_for(module));
    return "None";
  }

  // "OrderedDict([...])" of a container's modules.
  std::string children(const torch::nn::Module& module, const std::string& path, int depth) {
    const std::string indent(static_cast<size_t>(depth) * 4, ' ');
    std::string text = "OrderedDict([\n";
    for (const auto& child : module.named_children()) {
      const std::string below = path.empty() ? child.key() : path + "." + child.key();
      const char* kind = container_kind(*child.value(), options_);
      text += indent + "    (" + internal::python_string(child.key()) + ", " +
              expression(*child.value(), below, depth + 1) + ")," + said(kind) + "\n";
    }
    return text + indent + "])";
  }

  // What is said of a container that has no forward in C++.
  static std::string said(const char* kind) {
    if (kind == nullptr || std::string_view(kind) == "Sequential") return "";
    return std::string("  # a ") + kind + ", whose modules are called in their order here";
  }

  std::vector<std::string> problems;

 private:
  const TwinOptions& options_;
};

}  // namespace

std::string module_to_python(const torch::nn::Module& module, const std::string& name,
                             const TwinOptions& options) {
  check_name(name);
  const char* const kind = container_kind(module, options);
  TwinWriter writer(options);
  std::string body;
  if (kind != nullptr) {
    body = writer.children(module, "", 2);
  } else if (const auto layer = internal::layer_text(module)) {
    throw InvalidArgument("module_to_python: the module is a single " + module.name() +
                          "; put it into a torch::nn::Sequential");
  } else {
    throw InvalidArgument("module_to_python: the module is a " + module.name() +
                          advice_for(module) +
                          "; give a torch::nn::Sequential, or write the twin by hand");
  }
  if (!writer.problems.empty())
    throw InvalidArgument("module_to_python: " + joined(writer.problems, "; ") +
                          "; write the twin of these by hand");
  return "from collections import OrderedDict\n\nfrom torch import nn\n\n\nclass " + name +
         "(nn.Sequential):" + TwinWriter::said(kind) +
         "\n    def __init__(self):\n        super().__init__(" + body +
         ")\n\n\ndef make():\n    return " + name + "()\n";
}

}  // namespace lockstep::inline v0
