#include "lockstep/cli/option_parsing.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "lockstep/cli/option_table.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::cli {
namespace {

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// The first word that no option has taken. It also explains a missing option, the one that was
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

// Removes the zeros that CLI11 writes: "0.050000".
std::string short_number(const std::string& text) {
  char number[32];
  std::snprintf(number, sizeof number, "%.10g", std::strtod(text.c_str(), nullptr));
  return number;
}

// "--every: Value 0 not in range 0.050000 to 1000000.000000", "--split: tset not in
// {train,dev,test}"
std::optional<std::string> refused_value(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::ValidationError*>(&error) == nullptr) return std::nullopt;
  const std::string message = error.what(), range = " not in range ", choices = " not in {";
  const CLI::Option* option = option_at(app, message, 0);
  if (option == nullptr) return std::nullopt;
  std::string value = message.substr(std::min(message.find(": ") + 2, message.size()));
  std::string takes;
  if (const size_t at = value.find(range); at != std::string::npos && value.starts_with("Value ")) {
    const std::string ends = value.substr(at + range.size());
    const size_t to = ends.find(" to ");
    if (to == std::string::npos) return std::nullopt;
    takes = short_number(ends.substr(0, to)) + " to " + short_number(ends.substr(to + 4));
    value = value.substr(6, at - 6);
  } else if (const size_t list = value.find(choices); list != std::string::npos) {
    takes = value.substr(list + choices.size());
    value.resize(list);
    takes.resize(takes.find('}'));
    const size_t last = takes.rfind(',');
    if (last != std::string::npos) takes.replace(last, 1, " or ");
    for (size_t comma = 0; (comma = takes.find(',', comma)) != std::string::npos; comma += 2)
      takes.replace(comma, 1, ", ");
  } else {
    return std::nullopt;
  }
  return option->get_name() + " is '" + value + "'; give " + takes;
}

// "--data: 1 required TEXT missing"
std::optional<std::string> missing_value(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return std::nullopt;
  const std::string message = error.what();
  const CLI::Option* option = option_at(app, message, 0);
  if (option == nullptr || !message.ends_with(" missing")) return std::nullopt;
  return option->get_name() + " needs a value";
}

void refuse_empty_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_min() == 0 || value_name(*option) == "TEXT") continue;
    for (const std::string& value : option->results()) {
      if (value.empty())
        throw UsageError(option->get_name() + " is empty; give it a value, or leave it out; see " +
                         app.get_name() + " --help");
    }
  }
}

std::string line_of(const CLI::App& app, const CLI::ParseError& error) {
  if (const auto line = leftover(app, error)) return *line;
  if (const auto line = wrong_value(app, error)) return *line;
  if (const auto line = refused_value(app, error)) return *line;
  if (const auto line = missing_value(app, error)) return *line;
  return one_line(error.what());
}

}  // namespace

std::string value_name(const CLI::Option& option) {
  std::string type = option.get_type_name();
  if (option.get_items_expected_max() == 0) return {};
  const size_t choices = type.find(":{");
  if (choices != std::string::npos) {
    std::string list = type.substr(choices + 2, type.rfind('}') - choices - 2);
    std::replace(list.begin(), list.end(), ',', '|');
    return list;
  }
  for (const char* range : {":INT in [", ":UINT in [", ":FLOAT in ["})
    type.resize(std::min(type.find(range), type.size()));
  if (type == "INT" || type == "UINT") return "N";
  if (type == "FLOAT") return "NUMBER";
  return type;
}

namespace {

bool takes_a_value(const CLI::Option* option) {
  return option != nullptr && option->get_items_expected_min() > 0;
}

const CLI::Option* short_option(const CLI::App& app, char letter) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_snames())
      if (name == std::string(1, letter)) return option;
  return nullptr;
}

struct LongOption {
  const CLI::Option* option = nullptr;  // null: there is none
  std::string name;                     // in full, with its "--"
};

// The option that `name` ("--batch-s") names or begins.
LongOption long_option(const CLI::App& app, const std::string& name) {
  LongOption found;
  std::vector<std::string> starts;
  for (const CLI::Option* option : app.get_options()) {
    bool counted = false;  // two names of one option are not ambiguous
    for (const std::string& each : option->get_lnames()) {
      const std::string full = "--" + each;
      if (full == name) return {option, full};
      if (option->get_group().empty() || app.get_allow_extras() || !full.starts_with(name))
        continue;
      if (!counted) starts.push_back(full);
      if (!counted) found = {option, full};
      counted = true;
    }
  }
  if (starts.size() > 1)
    throw UsageError("the option " + name + " may mean " + joined(starts) + "; write more of it; " +
                     "see " + app.get_name() + " --help");
  return found;
}

// The words with the names of their options in full. Values are unchanged.
std::vector<std::string> in_full(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> result;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      result.insert(result.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    const CLI::Option* option = nullptr;
    std::string written = word;
    if (word.size() > 2 && word.starts_with("--")) {
      const size_t equals = std::min(word.find('='), word.size());
      std::string name = word.substr(0, equals);
      std::replace(name.begin(), name.end(), '_', '-');
      const LongOption found = long_option(app, name);
      written = (found.option == nullptr ? name : found.name) + word.substr(equals);
      if (equals == word.size()) option = found.option;
    } else if (word.size() == 2 && word[0] == '-') {
      option = short_option(app, word[1]);
    }
    result.push_back(written);
    if (takes_a_value(option) && i + 1 < words.size()) result.push_back(words[++i]);
  }
  return result;
}

}  // namespace

void parse_options(CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> reversed = in_full(app, words);
  std::reverse(reversed.begin(), reversed.end());  // CLI11 takes words from the back
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::ParseError& error) {
    throw UsageError(line_of(app, error) + "; see " + app.get_name() + " --help");
  }
  refuse_empty_values(app);
}

namespace {

bool is_shown(const CLI::Option& option) {
  return !option.get_group().empty();
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// "--nproc N", "-m, --module", "RECIPE".
std::string left_of(const CLI::Option& option) {
  const std::string text = joined(option_spellings(option));
  if (option.get_positional()) return text;
  const std::string value = value_name(option);
  return value.empty() ? text : text + " " + value;
}

std::string entry_of(const CLI::Option& option, size_t width) {
  constexpr size_t kColumn = 28;
  std::string text = "  " + left_of(option);
  const std::string about = (option.get_required() ? "(required) " : "") + option.get_description();
  if (text.size() + 2 > kColumn)
    text += "\n" + std::string(kColumn, ' ');
  else
    text.resize(kColumn, ' ');
  return text + wrapped(about, kColumn, kColumn, width) + "\n";
}

}  // namespace

std::vector<std::string> option_spellings(const CLI::Option& option) {
  if (option.get_positional()) return {upper(option.get_single_name())};
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string usage_of(const CLI::App& app) {
  std::string text = app.get_name();
  for (const CLI::Option* option : app.get_options())
    if (option->get_positional() && is_shown(*option)) text += " " + left_of(*option);
  return text + " [OPTIONS]";
}

void show_help(const CLI::App& app) {
  write_stdout(help_output(table_of(app), help_of(app, help_width())));
}

std::string help_of(const CLI::App& app, size_t width) {
  std::vector<std::string> groups;
  const CLI::Option* help = app.get_help_ptr();
  for (const CLI::Option* option : app.get_options()) {
    const std::string& group = option->get_group();
    if (option == help || !is_shown(*option)) continue;
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  std::string text =
      "Usage: " + usage_of(app) + "\n\n" + wrapped(app.get_description(), 0, 0, width) + "\n";
  for (const std::string& group : groups) {
    text += "\n" + group + ":\n";
    for (const CLI::Option* option : app.get_options())
      if (option != help && option->get_group() == group) text += entry_of(*option, width);
  }
  if (help != nullptr) text += entry_of(*help, width);
  if (!app.get_footer().empty()) text += "\n" + wrapped(app.get_footer(), 0, 0, width) + "\n";
  return text;
}

size_t help_width() {
  return std::min(kHelpWidth, columns_of(STDOUT_FILENO, kHelpWidth));
}

void add_example(CLI::App& app, const std::vector<std::string>& lines) {
  std::string footer = app.get_footer();
  if (!footer.empty()) footer += "\n\n";
  footer += lines.size() == 1 ? "Example:" : "Examples:";
  for (const std::string& line : lines) footer += "\n  " + line;
  app.footer(footer);
}

}  // namespace lockstep::inline v0::cli
