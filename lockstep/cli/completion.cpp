#include "lockstep/cli/completion.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/tables.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::cli {
namespace {

constexpr size_t kLongestAbout = 90;

// "train lm" of "lockstep train lm".
std::string key_of(const OptionTable& table) {
  const size_t space = table.command.find(' ');
  return space == std::string::npos ? "" : table.command.substr(space + 1);
}

// The words that may follow a key: commands, and the words of one.
struct Following {
  std::string key;
  std::vector<std::string> words;
};
std::vector<Following> following(const std::vector<OptionTable>& tables) {
  std::vector<Following> all{{"", {}}};
  for (const OptionTable& table : tables) {
    const std::string key = key_of(table);
    if (key.find(' ') == std::string::npos) all.front().words.push_back(key);
    if (!table.words.empty()) all.push_back({key, table.words});
  }
  return all;
}

std::string short_about(std::string about) {
  std::replace(about.begin(), about.end(), '\n', ' ');
  about.resize(std::min({about.size(), about.find("; "), about.find(": ")}));
  if (about.size() > kLongestAbout) {
    about.resize(about.rfind(' ', kLongestAbout));
    about += " ...";
  }
  return about;
}

// 'text', for bash and zsh.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}
std::string fish_quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') result += '\\';
    result += c;
  }
  return result + "'";
}

// What stands for the values of an option: FILE, DIR, the words to choose from, or "".
std::string value_word(const OptionRow& option) {
  const std::vector<std::string> choices = choices_of(option);
  if (!choices.empty()) return joined(choices, " ");
  if (takes_folder(option)) return "DIR";
  return takes_file(option) ? "FILE" : "";
}

// A `case` of bash and zsh with a line for each entry; none: the function does nothing.
std::string case_function(const std::string& name, const std::string& subject,
                          const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string text = name + "() {\n  case " + subject + " in\n";
  for (const auto& [key, action] : entries)
    text += "    " + (key.empty() ? "''" : key) + ") " + action + " ;;\n";
  return text + "  esac\n}\n";
}

// Values that have something to offer: "'train lm --amp'" -> words.
std::vector<std::pair<std::string, std::string>> value_cases(const std::vector<OptionTable>& tables,
                                                             const std::string& before,
                                                             const std::string& after) {
  std::vector<std::pair<std::string, std::string>> entries;
  for (const OptionTable& table : tables) {
    for (const OptionRow& option : table.options) {
      if (option.positional || option.value.empty()) continue;
      std::string pattern;
      for (const std::string& name : option.names)
        pattern += (pattern.empty() ? "" : "|") + quoted(key_of(table) + " " + name);
      entries.emplace_back(pattern, before + value_word(option) + after);
    }
  }
  return entries;
}

constexpr const char* kBashLogic = R"bash(
_lockstep() {
  local cur=${COMP_WORDS[COMP_CWORD]} key= pending= word i
  COMPREPLY=()
  [ "$cur" = "=" ] && cur=
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [ "$word" = "=" ]; then
      continue  # bash takes --option=value for three words
    elif [ "$word" = ":" ]; then
      ((i++))  # and so HOST:SLOTS
    elif [ -n "$pending" ]; then
      pending=
    elif [[ $word == -*=* ]]; then
      continue
    elif [[ $word == -* ]]; then
      _lockstep_value "$key $word" > /dev/null && pending=$word
    elif [[ " $(_lockstep_words "$key") " == *" $word "* ]]; then
      key=${key:+$key }$word
    elif [ "$key" = run ]; then
      # The program's own words.
      if declare -F _command_offset > /dev/null; then _command_offset "$i"; else compopt -o default; fi
      return
    fi
  done
  if [[ -z $pending && $cur == -*=* ]]; then
    pending=${cur%%=*} cur=${cur#*=}
  fi
  if [ -n "$pending" ]; then
    local values
    values=$(_lockstep_value "$key $pending")
    case $values in
      FILE) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
      DIR) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
      *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur") ;;
    esac
  elif [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_lockstep_options "$key")" -- "$cur")
  elif [ -n "$(_lockstep_words "$key")" ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_lockstep_words "$key")" -- "$cur")
  elif [ "$key" = run ]; then
    compopt -o filenames
    mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur")
  else
    compopt -o default
  fi
}
complete -F _lockstep lockstep
)bash";

constexpr const char* kZshLogic = R"zsh(
_lockstep() {
  local key= pending= word i
  local -a reply
  for ((i = 2; i < CURRENT; i++)); do
    word=${words[i]}
    if [[ -n $pending ]]; then
      pending=
    elif [[ $word == -*=* ]]; then
      continue
    elif [[ $word == -* ]]; then
      _lockstep_value "$key $word" && pending=$word
    else
      _lockstep_words "$key"
      if (( ${reply[(Ie)$word]} )); then
        key=${key:+$key }$word
      elif [[ $key == run ]]; then
        words=("${(@)words[i,-1]}")
        (( CURRENT -= i - 1 ))
        _normal
        return
      fi
    fi
  done
  if [[ -z $pending && ${words[CURRENT]} == -*=* ]]; then
    pending=${words[CURRENT]%%=*}
    compset -P '*='
  fi
  reply=()
  if [[ -n $pending ]]; then
    _lockstep_value "$key $pending"
    case ${reply[1]} in
      FILE) _files ;;
      DIR) _files -/ ;;
      *) (( ${#reply} )) && compadd -- $reply ;;
    esac
    return
  fi
  if [[ ${words[CURRENT]} == -* ]]; then
    _lockstep_options "$key"
    _describe -o option reply
    return
  fi
  _lockstep_words "$key"
  if (( ${#reply} )); then
    compadd -- $reply
  elif [[ $key == run ]]; then
    _command_names -e || _files
  else
    _files
  fi
}
if [[ ${funcstack[1]} == _lockstep ]]; then
  _lockstep "$@"
else
  compdef _lockstep lockstep
fi
)zsh";

constexpr const char* kFishLogic = R"fish(
# The words of lockstep that stand before the cursor, such as "train lm".
function __lockstep_key
    set -l tokens (commandline -opc)
    set -e tokens[1]
    set -l key
    set -l pending 0
    for token in $tokens
        if test $pending = 1
            set pending 0
            continue
        end
        if string match -q -- '-*' $token
            contains -- (string join -- ' ' $key $token) $__lockstep_valued; and set pending 1
            continue
        end
        if contains -- (string join -- ' ' $key $token) $__lockstep_paths
            set -a key $token
        else if test "$key" = run
            echo 'run program'
            return
        end
    end
    echo "$key"
end
function __lockstep_at
    set -l key (__lockstep_key)
    test "$key" = "$argv[1]"
end
)fish";

std::string bash_script(const std::vector<OptionTable>& tables) {
  std::vector<std::pair<std::string, std::string>> words, options;
  for (const Following& each : following(tables))
    words.emplace_back(quoted(each.key), "echo " + quoted(joined(each.words, " ")));
  for (const OptionTable& table : tables) {
    std::vector<std::string> names;
    for (const OptionRow& option : table.options)
      if (!option.positional) names.insert(names.end(), option.names.begin(), option.names.end());
    options.emplace_back(quoted(key_of(table)), "echo " + quoted(joined(names, " ")));
  }
  auto values = value_cases(tables, "echo '", "'");
  values.emplace_back("*", "return 1");
  return "# Completes lockstep's command lines in bash; made by 'lockstep completion bash'.\n" +
         case_function("_lockstep_words", "$1", words) +
         case_function("_lockstep_options", "$1", options) +
         case_function("_lockstep_value", "$1", values) + kBashLogic;
}

std::string zsh_script(const std::vector<OptionTable>& tables) {
  std::vector<std::pair<std::string, std::string>> words{}, options{};
  for (const Following& each : following(tables))
    words.emplace_back(quoted(each.key), "reply=(" + joined(each.words, " ") + ")");
  words.emplace_back("*", "reply=()");
  for (const OptionTable& table : tables) {
    std::string list;
    for (const OptionRow& option : table.options) {
      if (option.positional) continue;
      for (const std::string& name : option.names)
        list += "\n      " + quoted(name + ":" + short_about(option.about));
    }
    options.emplace_back(quoted(key_of(table)), "reply=(" + list + ")");
  }
  auto values = value_cases(tables, "reply=(", ")");
  values.emplace_back("*", "return 1");
  return "#compdef lockstep\n# Completes lockstep's command lines in zsh; made by 'lockstep "
         "completion zsh'.\n" +
         case_function("_lockstep_words", "$1", words) +
         case_function("_lockstep_options", "$1", options) +
         case_function("_lockstep_value", "$1", values) + kZshLogic;
}

std::string fish_option(const std::string& key, const OptionRow& option) {
  std::string line = "complete -c lockstep -n " + fish_quoted("__lockstep_at " + quoted(key));
  for (const std::string& name : option.names) {
    if (name.starts_with("--"))
      line += " -l " + name.substr(2);
    else
      line += (name.size() == 2 ? " -s " : " -o ") + name.substr(1);
  }
  const std::string values = value_word(option);
  if (values == "DIR" || values == "FILE") {
    line += " -r -F";
  } else if (!option.value.empty()) {
    line += " -x";
    if (!values.empty()) line += " -a " + fish_quoted(values);
  } else {
    line += " -f";
  }
  return line + " -d " + fish_quoted(short_about(option.about)) + "\n";
}

std::string fish_script(const std::vector<OptionTable>& tables) {
  std::string paths, valued, lines;
  for (const Following& each : following(tables)) {
    const std::string before = each.key.empty() ? "" : each.key + " ";
    for (const std::string& word : each.words) paths += " " + fish_quoted(before + word);
    lines += "complete -c lockstep -f -n " + fish_quoted("__lockstep_at " + quoted(each.key)) +
             " -a " + fish_quoted(joined(each.words, " ")) + "\n";
  }
  for (const OptionTable& table : tables) {
    for (const OptionRow& option : table.options) {
      if (option.positional) continue;
      lines += fish_option(key_of(table), option);
      if (option.value.empty()) continue;
      for (const std::string& name : option.names)
        valued += " " + fish_quoted(key_of(table) + " " + name);
    }
  }
  return "# Completes lockstep's command lines in fish; made by 'lockstep completion fish'.\n"
         "set -g __lockstep_paths" +
         paths + "\nset -g __lockstep_valued" + valued + "\n" + kFishLogic + lines;
}

struct CompletionFlags {
  std::string shell;
  bool help = false;
};

class CompletionParser {
 public:
  explicit CompletionParser(CompletionFlags& flags)
      : app_(
            "Prints the script by which a shell completes lockstep's commands, options and values. "
            "It is made of the commands' own options; make it anew with a new version.",
            "lockstep completion") {
    app_.set_help_flag();
    app_.footer(
        "bash: 'source <(lockstep completion bash)' in ~/.bashrc, or the output as "
        "~/.local/share/bash-completion/completions/lockstep.\n"
        "zsh: 'source <(lockstep completion zsh)' behind compinit in ~/.zshrc, or the output as "
        "_lockstep in a folder of $fpath.\n"
        "fish: the output as ~/.config/fish/completions/lockstep.fish.");
    add_example(app_, {"lockstep completion bash"});
    app_.add_option("shell", flags.shell, "Whose script: bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    app_.add_flag("--help,-h", flags.help, "This text");
  }
  CLI::App& app() { return app_; }

 private:
  CLI::App app_;
};

}  // namespace

std::string completion_script(Shell shell, const std::vector<OptionTable>& tables) {
  switch (shell) {
    case Shell::kBash:
      return bash_script(tables);
    case Shell::kZsh:
      return zsh_script(tables);
    case Shell::kFish:
      break;
  }
  return fish_script(tables);
}

int completion_command(const std::vector<std::string>& arguments) {
  CompletionFlags flags;
  CompletionParser parser(flags);
  if (asks_for_help(arguments)) {
    show_help(parser.app());
    return 0;
  }
  parse_options(parser.app(), arguments);
  const AllTables all = all_tables();
  for (const std::string& line : all.left_out)
    write_all(STDERR_FILENO, "lockstep completion: " + line + "\n");
  write_stdout(completion_script(flags.shell == "bash"  ? Shell::kBash
                                 : flags.shell == "zsh" ? Shell::kZsh
                                                        : Shell::kFish,
                                 all.tables));
  return 0;
}

OptionTable completion_table() {
  CompletionFlags flags;
  return table_of(CompletionParser(flags).app());
}

std::string completion_help() {
  CompletionFlags flags;
  return help_of(CompletionParser(flags).app(), help_width());
}

}  // namespace lockstep::inline v0::cli
