#include "lockstep/launch/host_list.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <optional>
#include <sstream>
#include <string_view>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {
namespace {

constexpr int kMaxSlots = 1 << 16;
constexpr size_t kMaxNodes = 1 << 20;

bool digit(char c) {
  return c >= '0' && c <= '9';
}

// The parts between commas outside brackets.
std::vector<std::string> split_outside_brackets(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

HostSlots parse_host(const std::string& part, const std::string& whole) {
  const auto wrong = [&] {
    return InvalidArgument("host list '" + whole + "': '" + part +
                           "' is not HOST or HOST:SLOTS with at least 1 slot");
  };
  HostSlots result;
  std::string_view rest = part;
  if (const auto open = rest.find('['), close = rest.find(']');
      open != std::string_view::npos && close != std::string_view::npos && open < close) {
    // A numeric IPv6 address, possibly after a user.
    result.host =
        std::string(rest.substr(0, open)) + std::string(rest.substr(open + 1, close - open - 1));
    rest.remove_prefix(close + 1);
    if (!rest.empty() && rest.front() != ':') throw wrong();
  } else {
    const auto colon = std::min(rest.find(':'), rest.size());
    result.host = rest.substr(0, colon);
    rest.remove_prefix(colon);
  }
  if (!rest.empty()) {
    const auto slots = parse_int(rest.substr(1), 1, kMaxSlots);
    if (!slots) throw wrong();
    result.slots = static_cast<int>(*slots);
  }
  // ssh would take it for an option.
  if (result.host.empty() || result.host.front() == '-') throw wrong();
  return result;
}

void add_host(std::vector<HostSlots>& hosts, const HostSlots& one) {
  const auto same = std::find_if(hosts.begin(), hosts.end(),
                                 [&](const HostSlots& other) { return other.host == one.host; });
  if (same == hosts.end()) {
    hosts.push_back(one);
  } else {
    same->slots = std::min(kMaxSlots, same->slots + one.slots);
  }
}

// Expands "001-003" or "7" of a bracket.
void expand_range(const std::string& range, const std::string& whole,
                  std::vector<std::string>& numbers) {
  const auto dash = range.find('-');
  const std::string first = range.substr(0, dash);
  const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
  const auto begin = parse_int(first, 0), end = parse_int(last, 0);
  if (!begin || !end || *begin > *end || static_cast<size_t>(*end - *begin) >= kMaxNodes) {
    throw InvalidArgument("node list '" + whole + "': '" + range + "' is no range of numbers");
  }
  for (int64_t number = *begin; number <= *end; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
    numbers.push_back(std::move(digits));
  }
}

void expand_name(const std::string& name, const std::string& whole,
                 std::vector<std::string>& nodes) {
  std::vector<std::string> heads(1);
  size_t at = 0;
  while (at < name.size()) {
    const size_t open = std::min(name.find('[', at), name.size());
    for (std::string& head : heads) head.append(name, at, open - at);
    if (open == name.size()) break;
    const size_t close = name.find(']', open);
    if (close == std::string::npos) {
      throw InvalidArgument("node list '" + whole + "': a '[' without its ']'");
    }
    std::vector<std::string> numbers;
    for (const std::string& range :
         split_outside_brackets(name.substr(open + 1, close - open - 1))) {
      expand_range(range, whole, numbers);
    }
    if (heads.size() * numbers.size() > kMaxNodes) {
      throw InvalidArgument("node list '" + whole + "' has too many nodes");
    }
    std::vector<std::string> longer;
    for (const std::string& head : heads) {
      for (const std::string& number : numbers) longer.push_back(head + number);
    }
    heads = std::move(longer);
    at = close + 1;
  }
  if (name.empty()) throw InvalidArgument("node list '" + whole + "' has an empty name");
  nodes.insert(nodes.end(), heads.begin(), heads.end());
}

}  // namespace

std::vector<HostSlots> parse_hosts(const std::string& text) {
  std::vector<HostSlots> hosts;
  for (const std::string& part : split_outside_brackets(text))
    add_host(hosts, parse_host(part, text));
  return hosts;
}

std::vector<HostSlots> parse_host_file(const std::string& text, const std::string& file) {
  std::vector<HostSlots> hosts;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    std::istringstream words(line);
    std::string name;
    if (!(words >> name)) continue;
    const std::string place = file + ":" + std::to_string(number) + ": ";
    HostSlots host;
    try {
      host = parse_host(name, name);
    } catch (const InvalidArgument&) {
      throw InvalidArgument(place + "'" + name + "' is not HOST or HOST:SLOTS");
    }
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      const std::string key = word.substr(0, equals);
      const auto slots = equals == std::string::npos
                             ? std::nullopt
                             : parse_int(std::string_view(word).substr(equals + 1), 1, kMaxSlots);
      const bool most = key == "max_slots" || key == "max-slots";
      if ((key != "slots" && !most) || !slots)
        throw InvalidArgument(place + "'" + word + "' is not slots=N with at least 1 slot");
      if (!most) host.slots = static_cast<int>(*slots);
    }
    add_host(hosts, host);
  }
  if (hosts.empty()) throw InvalidArgument(file + " names no host");
  return hosts;
}

std::vector<HostSlots> fill_hosts(const std::vector<HostSlots>& hosts, int ranks,
                                  const HostPlacing& placing, const std::string& source) {
  std::vector<HostSlots> filled;
  int slots = 0;
  for (const HostSlots& host : hosts) {
    filled.push_back({host.host, 0});
    slots += host.slots;
  }
  if (ranks > slots && !placing.oversubscribe)
    throw InvalidArgument(std::to_string(ranks) + " ranks do not fit " + source + ", which has " +
                          std::to_string(slots) + (slots == 1 ? " slot" : " slots") +
                          "; give its hosts more (HOST:SLOTS), start fewer ranks, or give "
                          "--oversubscribe");
  int left = ranks;
  for (size_t i = 0; i < hosts.size() && !placing.by_node; ++i) {
    filled[i].slots = std::min(left, hosts[i].slots);
    left -= filled[i].slots;
  }
  // By turns: what is left, one rank on each host that has room.
  while (left > 0) {
    const int placed = ranks - left;
    for (size_t i = 0; i < hosts.size() && left > 0; ++i) {
      if (placed < slots && filled[i].slots >= hosts[i].slots) continue;
      ++filled[i].slots;
      --left;
    }
  }
  std::erase_if(filled, [](const HostSlots& host) { return host.slots == 0; });
  return filled;
}

std::vector<std::string> expand_slurm_nodes(const std::string& text) {
  std::vector<std::string> nodes;
  for (const std::string& name : split_outside_brackets(text)) expand_name(name, text, nodes);
  return nodes;
}

bool host_before(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const auto number = [](const std::string& text, size_t& at) {
        while (at < text.size() && text[at] == '0') ++at;
        const size_t begin = at;
        while (at < text.size() && digit(text[at])) ++at;
        return text.substr(begin, at - begin);
      };
      const std::string x = number(a, i), y = number(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  if (i < a.size() || j < b.size()) return j < b.size();
  return a < b;  // node01 and node1: any order will do
}

}  // namespace lockstep::inline v0::launch
