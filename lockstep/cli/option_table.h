// A command's options as data: what shell completion and man pages are made of. The text of --help
// and the table have one source, the CLI11 app.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::inline v0::cli {

struct OptionRow {
  std::vector<std::string> names;  // as they are typed: "--nproc", "-n"; of a positional "RECIPE"
  std::string value;               // "N", "FILE", "stop|restart"; "" where it takes none
  std::string about;
  std::string group;
  bool positional = false;
  bool required = false;
  bool value_optional = false;

  bool operator==(const OptionRow&) const = default;
};

// The words of a value that can be typed as they are: stop, restart of "stop|restart|FILE".
std::vector<std::string> choices_of(const OptionRow& option);
// Whether a value is the path of a file, or of a folder.
bool takes_file(const OptionRow& option);
bool takes_folder(const OptionRow& option);

struct OptionTable {
  std::string command;  // "lockstep train"
  std::string usage;    // "lockstep train RECIPE [OPTIONS]"
  std::string about;
  std::vector<OptionRow> options;  // in the order of the help; hidden ones are left out
  std::string footer;              // paragraphs, and examples at the end
  // Words of which one follows the command, and has a help of its own: the recipes of train, the
  // kinds of bench.
  std::vector<std::string> words;

  bool operator==(const OptionTable&) const = default;
};

OptionTable table_of(const CLI::App& app);

std::string to_json(const OptionTable& table);
// Throws: DataError for a text that to_json() did not write.
OptionTable table_from_json(const std::string& text);

// The environment variable by which one program of lockstep asks another for the table instead of
// the text of --help: "json".
inline constexpr const char* kHelpFormat = "LOCKSTEP_HELP_FORMAT";

// A command's output for --help: `text`, or the table as JSON where the environment asks for it.
std::string help_output(const OptionTable& table, const std::string& text);
// The same for a command without options of its own, whose first word chooses what it does.
// `command` is "lockstep bench".
std::string help_output(const std::string& command, const std::vector<std::string>& words,
                        const std::string& text);

}  // namespace lockstep::inline v0::cli
