// Tables of things that have names, and the refusal of a name that is not in one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/text.h"

namespace lockstep::inline v0 {

// The names of a table's entries, which have a member `name`, in their order.
template <typename Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.name);
  return names;
}

// "there is no KIND 'NAME'; did you mean NEAREST?", or, where none is near, "there is no KIND
// 'NAME'.": a sentence that another one can follow.
template <typename Names>
std::string unknown_name(const std::string& kind, std::string_view name, const Names& names) {
  const std::string nearest = nearest_name(name, names);
  return "there is no " + kind + " '" + std::string(name) + "'" +
         (nearest.empty() ? "." : "; did you mean " + nearest + "?");
}

}  // namespace lockstep::inline v0
