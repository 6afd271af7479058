#include "lockstep/cli/run/mapping.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <utility>
#include <vector>

#include "lockstep/cli/usage.h"
#include "lockstep/core/env.h"

namespace lockstep::inline v0::cli {
namespace {

using launch::CpuUnit;

constexpr int kMost = 1 << 16;

// "ppr:2:socket:PE=4" as its words, in lower case.
std::vector<std::string> words_at_colons(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ':');) {
    std::transform(word.begin(), word.end(), word.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    words.push_back(word);
  }
  if (words.empty()) words.emplace_back();
  return words;
}

std::optional<CpuUnit> unit_named(const std::string& word) {
  if (word == "hwthread") return CpuUnit::kHwthread;
  if (word == "core") return CpuUnit::kCore;
  if (word == "numa") return CpuUnit::kNuma;
  if (word == "socket" || word == "package") return CpuUnit::kSocket;
  return std::nullopt;
}

int number_of(const std::string& flag, const std::string& text, const std::string& word) {
  const auto number = parse_int(word, 1, kMost);
  if (!number)
    throw UsageError(flag + "=" + text + ": '" + word + "' is not a number of 1 or more");
  return static_cast<int>(*number);
}

void read_bind_to(const std::string& text, Mapping& mapping) {
  const std::vector<std::string> words = words_at_colons(text);
  if (words[0] == "none") {
    mapping.pin = false;
    if (words.size() == 1) return;
  }
  const auto unit = unit_named(words[0]);
  if (!unit)
    throw UsageError("--bind-to=" + text +
                     ": there are none, hwthread, core, numa and socket; without --bind-to each "
                     "rank has its share of the processors");
  mapping.binding.given = true;
  mapping.binding.to = *unit;
  // Without --map-by, ranks are dealt to what they are bound to, as mpirun deals them.
  mapping.binding.by = *unit;
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "overload-allowed") {
      mapping.binding.overload = true;
    } else if (words[i] != "if-supported") {
      // MPICH's core:2.
      mapping.binding.cores = number_of("--bind-to", text, words[i]);
    }
  }
}

void read_modifier(const std::string& text, const std::string& word, Mapping& mapping) {
  if (word.starts_with("pe=")) {
    mapping.binding.cores = number_of("--map-by", text, word.substr(3));
  } else if (word == "oversubscribe") {
    mapping.placing.oversubscribe = true;
  } else if (word != "nooversubscribe") {
    throw UsageError("--map-by=" + text + ": there is no '" + word +
                     "'; PE=N, OVERSUBSCRIBE and NOOVERSUBSCRIBE are known");
  }
}

void read_map_by(const std::string& text, bool bound, Mapping& mapping) {
  std::vector<std::string> words = words_at_colons(text);
  const auto wrong = [&] {
    return UsageError("--map-by=" + text +
                      ": there are slot, node, hwthread, core, numa, socket and ppr:N:UNIT, each "
                      "with :PE=N");
  };
  std::string by = words[0];
  size_t next = 1;
  std::optional<int> per;
  if (by == "ppr") {
    if (words.size() < 3) throw wrong();
    per = number_of("--map-by", text, words[1]);
    by = words[2];
    next = 3;
  }
  const bool of_host = by == "node" || (by == "slot" && !per);
  const auto named = unit_named(by);
  if (!of_host && !named) throw wrong();
  if (by == "node" && !per) mapping.placing.by_node = true;
  if (by == "node") mapping.per_host = per;
  if (!of_host) {
    const CpuUnit unit = named.value_or(CpuUnit::kCore);
    mapping.per_unit = per;
    mapping.unit = unit;
    mapping.binding.by = unit;
    mapping.binding.in_a_row = per.value_or(0);
    if (bound && mapping.binding.to == CpuUnit::kHwthread && unit != CpuUnit::kHwthread)
      throw UsageError("--map-by=" + text +
                       " does not go with --bind-to=hwthread: ranks that have a hardware thread "
                       "each are dealt by --map-by=hwthread");
    // As under Open MPI, ranks are bound to what they are mapped by.
    if (!bound) mapping.binding.to = unit;
    mapping.binding.given = mapping.pin;
  }
  for (; next < words.size(); ++next) read_modifier(text, words[next], mapping);
  // PE=N alone gives each rank N cores.
  if (mapping.binding.cores > 1) {
    if (!mapping.pin)
      throw UsageError("--map-by=" + text +
                       " gives each rank its cores, and --bind-to=none gives it none; leave one "
                       "of them out");
    if (!bound) mapping.binding.to = CpuUnit::kCore;
    mapping.binding.given = true;
  }
}

}  // namespace

Mapping parse_mapping(const std::string& bind_to, const std::string& map_by) {
  Mapping mapping;
  if (!bind_to.empty()) read_bind_to(bind_to, mapping);
  if (!map_by.empty()) read_map_by(map_by, !bind_to.empty(), mapping);
  return mapping;
}

}  // namespace lockstep::inline v0::cli
