#include "lockstep/cli/manual.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "lockstep/cli/commands.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/tables.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/log.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::cli {
namespace {

// A line of text that man(7) takes as it is.
std::string roff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else if (c == '\n') {
      result += ' ';
    } else {
      result += c;
    }
  }
  // A line that begins with one of these would be a request.
  if (result.starts_with('.') || result.starts_with('\'')) result.insert(0, "\\&");
  return result;
}

std::string heading(const std::string& page) {
  std::string upper = page;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return ".TH " + roff(upper) + " 1 \"\" \"Lockstep " + LOCKSTEP_VERSION + "\" \"Lockstep\"\n";
}

std::string names_of(const OptionRow& option) {
  std::string text;
  for (const std::string& name : option.names)
    text += (text.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  if (!option.value.empty() && !option.positional) text += " \\fI" + roff(option.value) + "\\fR";
  return text;
}

std::string options_of(const OptionTable& table) {
  std::vector<std::string> groups;
  for (const OptionRow& option : table.options) {
    if (std::find(groups.begin(), groups.end(), option.group) == groups.end())
      groups.push_back(option.group);
  }
  std::string text = groups.empty() ? "" : ".SH OPTIONS\n";
  for (const std::string& group : groups) {
    if (groups.size() > 1) text += ".SS " + roff(group) + "\n";
    for (const OptionRow& option : table.options) {
      if (option.group != group) continue;
      text += ".TP\n" + names_of(option) + "\n";
      text += roff((option.required ? "(required) " : "") + option.about) + "\n";
    }
  }
  return text;
}

// The footer's lines: paragraphs, and indented ones, which are command lines.
std::string notes_of(const std::string& footer) {
  std::string notes, examples;
  std::istringstream lines(footer);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line == "Example:" || line == "Examples:") continue;
    if (line.starts_with("  "))
      examples += roff(line.substr(2)) + "\n";
    else
      notes += (notes.empty() ? "" : ".PP\n") + roff(line) + "\n";
  }
  return (notes.empty() ? "" : ".SH NOTES\n" + notes) +
         (examples.empty() ? "" : ".SH EXAMPLES\n.nf\n" + examples + ".fi\n");
}

std::string see_also(const std::vector<std::string>& pages) {
  std::string text;
  for (const std::string& page : pages)
    text += (text.empty() ? ".SH SEE ALSO\n" : ",\n") + (".BR " + roff(page) + " (1)");
  return text.empty() ? "" : text + "\n";
}

// "Trains a model, on one or several ranks." -> "Trains a model, on one or several ranks"
std::string first_sentence(const std::string& about) {
  return about.substr(0, std::min(about.find(". "), about.find_last_not_of(". \n") + 1));
}

struct Page {
  std::string name, text;
};

std::vector<Page> pages_of(const std::vector<OptionTable>& tables) {
  std::vector<Page> pages{{"lockstep", overview_page()}};
  for (const OptionTable& table : tables) {
    std::string summary = first_sentence(table.about);
    std::vector<std::string> others{"lockstep"};
    for (const Command& command : commands())
      if (table.command == std::string("lockstep ") + command.name) summary = command.summary;
    for (const std::string& word : table.words)
      others.push_back(page_name(table.command + " " + word));
    pages.push_back({page_name(table.command), man_page(table, summary, others)});
  }
  return pages;
}

struct ManualFlags {
  std::vector<std::string> words;
  std::string output;
  bool help = false;
};

class ManualParser {
 public:
  explicit ManualParser(ManualFlags& flags)
      : app_(
            "Prints the man page of lockstep, or of one of its commands, made of the command's help; "
            "or writes all of them.",
            "lockstep man") {
    app_.set_help_flag();
    app_.footer("An installation has the pages already: man lockstep-run.");
    add_example(app_, {"lockstep man run", "lockstep man train lm", "lockstep man --output man1"});
    app_.add_option("command", flags.words, "Of which command: its words, such as train lm")
        ->expected(0, 2);
    app_.add_option("--output", flags.output,
                    "Write all pages into this folder, lockstep.1 and so on")
        ->type_name("DIR");
    app_.add_flag("--help,-h", flags.help, "This text");
  }
  CLI::App& app() { return app_; }

 private:
  CLI::App app_;
};

void write_pages(const std::string& folder, const std::vector<Page>& pages) {
  const OutputFolder made(folder);
  for (const Page& page : pages)
    write_output_file(std::filesystem::path(folder) / (page.name + ".1"), page.text);
}

const Page& page_named(const std::vector<Page>& pages, const std::string& name) {
  std::vector<std::string> names;
  for (const Page& page : pages) {
    if (page.name == name) return page;
    names.push_back(page.name);
  }
  throw UsageError("there is no page " + name + suggestion(name, names) + "; there are " +
                   joined(names));
}

}  // namespace

std::string page_name(const std::string& command) {
  std::string name = command;
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string man_page(const OptionTable& table, const std::string& summary,
                     const std::vector<std::string>& others) {
  const std::string name = page_name(table.command);
  // Where a word has been chosen, the usage still has the place of it.
  std::string usage = table.usage;
  if (usage.starts_with(table.command + " "))
    usage = "\\fB" + roff(table.command) + "\\fR " + roff(usage.substr(table.command.size() + 1));
  else
    usage = "\\fB" + roff(table.command) + "\\fR [OPTIONS]";
  return heading(name) + ".SH NAME\n" + roff(name) + " \\- " + roff(summary) + "\n.SH SYNOPSIS\n" +
         usage + "\n.SH DESCRIPTION\n" + roff(table.about) + "\n" + options_of(table) +
         notes_of(table.footer) + see_also(others);
}

std::string overview_page() {
  std::string text = heading("lockstep") +
                     ".SH NAME\nlockstep \\- distributed training for C++ on libtorch\n"
                     ".SH SYNOPSIS\n\\fBlockstep\\fR COMMAND [arguments]\n.SH COMMANDS\n";
  std::vector<std::string> pages;
  for (const Command& command : commands()) {
    text += ".TP\n\\fB" + roff(command.name) + "\\fR\n" + roff(command.summary) + "\n";
    pages.push_back(page_name(std::string("lockstep ") + command.name));
  }
  return text + see_also(pages);
}

int manual_command(const std::vector<std::string>& arguments) {
  ManualFlags flags;
  ManualParser parser(flags);
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end() ||
      std::find(arguments.begin(), arguments.end(), "-h") != arguments.end()) {
    show_help(parser.app());
    return 0;
  }
  parse_options(parser.app(), arguments);
  if (!flags.words.empty() && !flags.output.empty())
    throw UsageError("--output writes all pages; leave '" + flags.words.front() + "' out");
  if (flags.words.empty() && flags.output.empty()) {
    write_stdout(overview_page());
    return 0;
  }
  const AllTables all = all_tables();
  for (const std::string& line : all.left_out)
    write_all(STDERR_FILENO, "lockstep man: " + line + "\n");
  const std::vector<Page> pages = pages_of(all.tables);
  if (!flags.output.empty())
    write_pages(flags.output, pages);
  else
    write_stdout(page_named(pages, page_name("lockstep " + joined(flags.words, " "))).text);
  return 0;
}

OptionTable manual_table() {
  ManualFlags flags;
  return table_of(ManualParser(flags).app());
}

std::string manual_help() {
  ManualFlags flags;
  return help_of(ManualParser(flags).app(), help_width());
}

}  // namespace lockstep::inline v0::cli
