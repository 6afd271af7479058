#include "lockstep/cli/engine/diff/run_diff.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "lockstep/train/callbacks.h"

namespace lockstep::inline v0::engine {
namespace {

using nlohmann::json;

// Identifies a record by step, type, and its number among those.
struct RecordKey {
  int64_t step = 0;
  std::string type;
  int repeat = 0;
  auto operator<=>(const RecordKey&) const = default;
};

std::map<RecordKey, const json*> by_key(const std::vector<json>& records) {
  std::map<RecordKey, const json*> result;
  std::map<std::pair<int64_t, std::string>, int> repeats;
  for (const json& record : records) {
    const int64_t step = record.value("step", int64_t{0});
    const std::string type = record.value("type", "");
    result[{step, type, repeats[{step, type}]++}] = &record;
  }
  return result;
}

bool same(const json& a, const json& b, double tolerance) {
  if (!a.is_number() || !b.is_number()) return a == b;
  if (a.is_number_integer() && b.is_number_integer() && tolerance == 0) return a == b;
  const auto x = a.get<double>(), y = b.get<double>();
  return x == y || std::abs(x - y) <= tolerance * std::max({1.0, std::abs(x), std::abs(y)});
}

// Finds the first member that differs.
std::optional<RunDifference> first_difference(const RecordKey& key, const json& a, const json& b,
                                              double tolerance) {
  std::set<std::string> members;
  for (const json* record : {&a, &b}) {
    for (const auto& [name, value] : record->items()) members.insert(name);
  }
  for (const std::string& name : members) {
    if (!counts_in_diff(name)) continue;
    const json left = a.contains(name) ? a.at(name) : json();
    const json right = b.contains(name) ? b.at(name) : json();
    if (!same(left, right, tolerance))
      return RunDifference{.step = key.step, .type = key.type, .key = name, .a = left, .b = right};
  }
  return std::nullopt;
}

}  // namespace

RunsDiff diff_metrics(const std::vector<json>& a, const std::vector<json>& b, double tolerance) {
  const auto left = by_key(a), right = by_key(b);
  std::set<RecordKey> keys;
  for (const auto* side : {&left, &right}) {
    for (const auto& [key, record] : *side) keys.insert(key);
  }
  RunsDiff diff;
  for (const RecordKey& key : keys) {
    const auto in_a = left.find(key), in_b = right.find(key);
    std::optional<RunDifference> difference;
    if (in_a != left.end() && in_b != right.end()) {
      ++diff.records;
      difference = first_difference(key, *in_a->second, *in_b->second, tolerance);
    } else {
      difference = RunDifference{.step = key.step,
                                 .type = key.type,
                                 .key = {},
                                 .a = in_a != left.end() ? *in_a->second : json(),
                                 .b = in_b != right.end() ? *in_b->second : json()};
    }
    if (!difference) continue;
    ++diff.different;
    if (!diff.first) diff.first = std::move(difference);
  }
  return diff;
}

}  // namespace lockstep::inline v0::engine
