#include "lockstep/cli/option_parsing.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <optional>

#include "lockstep/cli/usage.h"

namespace lockstep::cli {
namespace {

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// The first word that no option has taken. It explains a missing option as well: the one that was
// mistyped.
std::optional<std::string> leftover(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> words = app.remaining();
  const auto option = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word.size() > 1 && word.front() == '-';
  });
  if (option != words.end()) {
    const std::string name = option->substr(0, option->find('='));
    return "unknown option " + name + suggestion(name, option_names(app));
  }
  if (words.empty() || dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr)
    return std::nullopt;
  return "unexpected argument '" + words.front() + "'";
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The option that CLI11's message begins with; null where it begins with something else.
const CLI::Option* option_at(const CLI::App& app, const std::string& message, size_t begin) {
  const CLI::Option* found = nullptr;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    const bool longer = found == nullptr || name.size() > found->get_name().size();
    if (longer && message.compare(begin, name.size(), name) == 0) found = option;
  }
  return found;
}

// "Could not convert: --epochs = 1.5"
std::optional<std::string> wrong_value(const CLI::App& app, const CLI::ParseError& error) {
  const std::string message = error.what(), start = "Could not convert: ", equals = " = ";
  if (!message.starts_with(start)) return std::nullopt;
  const CLI::Option* option = option_at(app, message, start.size());
  const size_t value = message.find(equals, start.size());
  if (option == nullptr || value == std::string::npos) return std::nullopt;
  const std::string type = option->get_type_name();
  const bool real = type.starts_with("FLOAT") || type == "SECONDS";
  return option->get_name() + " is '" + message.substr(value + equals.size()) + "'; give " +
         (real ? "a number" : "a whole number");
}

// "--data: 1 required TEXT missing"
std::optional<std::string> missing_value(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return std::nullopt;
  const std::string message = error.what();
  const CLI::Option* option = option_at(app, message, 0);
  if (option == nullptr || !message.ends_with(" missing")) return std::nullopt;
  return option->get_name() + " needs a value";
}

std::string line_of(const CLI::App& app, const CLI::ParseError& error) {
  if (const auto line = leftover(app, error)) return *line;
  if (const auto line = wrong_value(app, error)) return *line;
  if (const auto line = missing_value(app, error)) return *line;
  return one_line(error.what());
}

}  // namespace

void parse_options(CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> reversed(words.rbegin(),
                                    words.rend());  // CLI11 takes them from the back
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::ParseError& error) {
    throw UsageError(line_of(app, error) + "; see " + app.get_name() + " --help");
  }
}

}  // namespace lockstep::cli
