#include "lockstep/cli/option_table.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::cli {
namespace {

std::vector<std::string> parts_of_value(std::string value) {
  std::erase_if(value, [](char c) { return c == '[' || c == ']'; });
  std::vector<std::string> parts;
  std::istringstream stream(value);
  for (std::string part; std::getline(stream, part, '|');) parts.push_back(part);
  return parts;
}

bool has_part(const OptionRow& option, std::initializer_list<const char*> kinds) {
  const std::vector<std::string> parts = parts_of_value(option.value);
  return std::any_of(kinds.begin(), kinds.end(), [&](const char* kind) {
    return std::find(parts.begin(), parts.end(), kind) != parts.end();
  });
}

// Without the help flag at its place among the others: it comes last, as in the text.
std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  std::vector<const CLI::Option*> shown;
  for (const CLI::Option* option : app.get_options())
    if (option != app.get_help_ptr() && !option->get_group().empty()) shown.push_back(option);
  if (app.get_help_ptr() != nullptr) shown.push_back(app.get_help_ptr());
  return shown;
}

}  // namespace

std::vector<std::string> choices_of(const OptionRow& option) {
  std::vector<std::string> choices;
  const std::vector<std::string> parts = parts_of_value(option.value);
  for (const std::string& part : parts) {
    const bool word = !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) {
      return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-' || c == '_' || c == '.';
    });
    if (word) choices.push_back(part);
  }
  return choices;
}

bool takes_file(const OptionRow& option) {
  return has_part(option, {"FILE", "PATH", "PROGRAM"});
}

bool takes_folder(const OptionRow& option) {
  return has_part(option, {"DIR"});
}

OptionTable table_of(const CLI::App& app) {
  OptionTable table{.command = app.get_name(),
                    .usage = usage_of(app),
                    .about = app.get_description(),
                    .options = {},
                    .footer = app.get_footer(),
                    .words = {}};
  for (const CLI::Option* option : shown_options(app)) {
    OptionRow row{.names = option_spellings(*option),
                  .value = value_name(*option),
                  .about = option->get_description(),
                  .group = option == app.get_help_ptr() ? "Options" : option->get_group(),
                  .positional = option->get_positional(),
                  .required = option->get_required(),
                  .value_optional = option->get_items_expected_min() == 0 &&
                                    option->get_items_expected_max() != 0};
    if (row.positional && table.words.empty()) table.words = choices_of(row);
    table.options.push_back(std::move(row));
  }
  // Commands are called "lockstep compare [RECIPE]" where that is how they are to be typed.
  table.command.resize(std::min(table.command.find(" ["), table.command.size()));
  return table;
}

std::string to_json(const OptionTable& table) {
  nlohmann::ordered_json json = {{"command", table.command}, {"usage", table.usage},
                                 {"about", table.about},     {"footer", table.footer},
                                 {"words", table.words},     {"options", nlohmann::json::array()}};
  for (const OptionRow& option : table.options)
    json["options"].push_back({{"names", option.names},
                               {"value", option.value},
                               {"about", option.about},
                               {"group", option.group},
                               {"positional", option.positional},
                               {"required", option.required},
                               {"value_optional", option.value_optional}});
  return json.dump();
}

OptionTable table_from_json(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    OptionTable table{.command = json.at("command"),
                      .usage = json.at("usage"),
                      .about = json.at("about"),
                      .options = {},
                      .footer = json.at("footer"),
                      .words = json.at("words").get<std::vector<std::string>>()};
    for (const auto& option : json.at("options"))
      table.options.push_back({.names = option.at("names").get<std::vector<std::string>>(),
                               .value = option.at("value"),
                               .about = option.at("about"),
                               .group = option.at("group"),
                               .positional = option.at("positional"),
                               .required = option.at("required"),
                               .value_optional = option.at("value_optional")});
    return table;
  } catch (const nlohmann::json::exception&) {
    throw DataError(
        "the help of a command is not the table that was asked for; every program of "
        "Lockstep must be of one version");
  }
}

std::string help_output(const OptionTable& table, const std::string& text) {
  return process_env()(kHelpFormat) == "json" ? to_json(table) + "\n" : text;
}

std::string help_output(const std::string& command, const std::vector<std::string>& words,
                        const std::string& text) {
  // The text is "Usage: ...", what it does, and an example.
  const size_t usage = text.find(": "), body = text.find("\n\n");
  const size_t example = text.find("\n\nExample");
  OptionTable table{.command = command,
                    .usage = text.substr(usage + 2, body - usage - 2),
                    .about = text.substr(body + 2, example - body - 2),
                    .options = {},
                    .footer = example == std::string::npos ? "" : text.substr(example + 2),
                    .words = words};
  std::replace(table.about.begin(), table.about.end(), '\n', ' ');
  while (table.footer.ends_with('\n')) table.footer.pop_back();
  return help_output(table, text);
}

}  // namespace lockstep::inline v0::cli
