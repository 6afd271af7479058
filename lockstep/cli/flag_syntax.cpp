#include "lockstep/cli/flag_syntax.h"

#include <algorithm>
#include <optional>

#include "lockstep/cli/usage.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::cli {
namespace {

const Flag& find_long(const std::string& written, const std::vector<Flag>& known) {
  std::string name = written;
  std::replace(name.begin(), name.end(), '_', '-');
  std::vector<std::string> names, starts;
  const Flag* found = nullptr;
  for (const Flag& flag : known) {
    if (flag.name == name) return flag;
    if (flag.instead.empty()) names.push_back(flag.name);
    if (flag.foreign || !flag.name.starts_with(name)) continue;
    starts.push_back(flag.name);
    found = &flag;
  }
  if (starts.size() == 1 && name.size() > 2) return *found;
  if (starts.size() > 1 && name.size() > 2) {
    throw UsageError("the flag " + written + " may mean " + joined(starts) + "; write more of it");
  }
  throw UsageError("unknown flag " + written + suggestion(name, names));
}

struct Short {
  const Flag* flag;
  std::optional<std::string> value;  // attached: -r3
};

Short find_short(const std::string& written, const std::vector<Flag>& known) {
  std::vector<std::string> names;
  for (const Flag& flag : known) {
    if (flag.short_name == written) return {&flag, std::nullopt};
    if (flag.instead.empty())
      names.push_back(flag.short_name.empty() ? flag.name : flag.short_name);
  }
  // mpirun's long flags with one '-': -hostfile, -map-by.
  std::string name = "-" + written.substr(0, written.find('='));
  std::replace(name.begin(), name.end(), '_', '-');
  for (const Flag& flag : known) {
    if (written.size() < 3 || flag.name != name) continue;
    const size_t equals = written.find('=');
    return {&flag,
            equals == std::string::npos ? std::nullopt : std::optional(written.substr(equals + 1))};
  }
  for (const Flag& flag : known) {
    if (flag.short_name.size() == 2 && flag.takes_value && written.starts_with(flag.short_name)) {
      std::string value = written.substr(2);
      if (value.starts_with('=')) value.erase(0, 1);
      return {&flag, value};
    }
  }
  throw UsageError("unknown flag " + written + suggestion("-" + written, names));
}

}  // namespace

SplitCommandLine split_command_line(const std::vector<std::string>& arguments,
                                    const std::vector<Flag>& known) {
  SplitCommandLine result;
  size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") {
      result.separated = true;
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    const Flag* flag = nullptr;
    std::optional<std::string> value;
    if (word.starts_with("--")) {
      const auto equals = word.find('=');
      flag = &find_long(word.substr(0, equals), known);
      if (equals != std::string::npos) value = word.substr(equals + 1);
    } else {
      const Short found = find_short(word, known);
      flag = found.flag;
      value = found.value;
    }
    if (!flag->instead.empty()) throw UsageError(word + " " + flag->instead);
    const std::string& passed_on = flag->means.empty() ? flag->name : flag->means;
    if (!flag->takes_value) {
      if (value) throw UsageError("the flag " + flag->name + " takes no value");
      result.flags.push_back(passed_on);
      continue;
    }
    if (!value && i + 1 < arguments.size()) value = arguments[++i];
    if (!value || value->empty()) throw UsageError("the flag " + flag->name + " needs a value");
    result.flags.push_back(passed_on + "=" + *value);
  }
  result.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return result;
}

}  // namespace lockstep::inline v0::cli
