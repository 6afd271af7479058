#include "lockstep/launch/roles.h"

#include <algorithm>
#include <set>

#include "lockstep/core/check.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/words_at_commas.h"

namespace lockstep::inline v0::launch {
namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kMostRestarts = 1'000'000;

bool is_role_name(std::string_view name) {
  const auto in_a_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), in_a_name);
}

}  // namespace

Role parse_role(const std::string& text) {
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument("role '" + text + "': " + what);
  };
  const std::vector<std::string> words = words_at_commas(text);
  const size_t equals = words.front().find('=');
  Role role;
  role.name = words.front().substr(0, equals);
  if (!is_role_name(role.name))
    refuse("expected NAME=COUNT[,restarts=N][,service], a name of letters, digits, '.', '_', '-'");
  const auto ranks = equals == std::string::npos
                         ? std::nullopt
                         : parse_int(words.front().substr(equals + 1), 1, kMostRanks);
  if (!ranks) refuse("expected a number of ranks, 1 or more, after " + role.name + "=");
  role.ranks = static_cast<int>(*ranks);
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "service") {
      role.service = true;
    } else if (word.starts_with("restarts=")) {
      const auto restarts = parse_int(word.substr(9), 0, kMostRestarts);
      if (!restarts)
        refuse(word + ": expected a number from 0 to " + std::to_string(kMostRestarts));
      role.restarts = static_cast<int>(*restarts);
    } else {
      refuse("there is no '" + word + "'; restarts=N and service are possible");
    }
  }
  return role;
}

void check_roles(std::span<const Role> roles) {
  std::set<std::string> names;
  int64_t ranks = 0;
  bool clients = false;
  for (const Role& role : roles) {
    if (!is_role_name(role.name))
      throw InvalidArgument("role '" + role.name +
                            "': a name has letters, digits, '.', '_' and '-', at least one");
    if (!names.insert(role.name).second)
      throw InvalidArgument("role '" + role.name + "' is given twice; give each name once");
    if (role.ranks < 1 || role.restarts < 0)
      throw InvalidArgument("role '" + role.name + "' needs at least 1 rank and no fewer than 0 " +
                            "restarts");
    ranks += role.ranks;
    if (ranks > kMostRanks)
      throw InvalidArgument("the roles have more than " + std::to_string(kMostRanks) + " ranks");
    clients = clients || !role.service;
  }
  if (!roles.empty() && !clients)
    throw InvalidArgument(
        "every role is a service, so the job would end at once; leave ',service' out of one");
}

int rank_count(std::span<const Role> roles) {
  int ranks = 0;
  for (const Role& role : roles) ranks += role.ranks;
  return ranks;
}

RolePlace place_in_role(std::span<const Role> roles, int rank) {
  for (size_t i = 0; i < roles.size(); ++i) {
    if (rank < roles[i].ranks) return {i, rank};
    rank -= roles[i].ranks;
  }
  LOCKSTEP_CHECK(false, "the roles have that rank");
  return {};
}

std::string name_in_role(std::span<const Role> roles, int rank) {
  if (roles.empty()) return "";
  const RolePlace place = place_in_role(roles, rank);
  return roles[place.role].name + " " + std::to_string(place.rank);
}

std::string role_ranges(std::span<const Role> roles) {
  std::vector<std::string> ranges;
  int first = 0;
  for (const Role& role : roles) {
    ranges.push_back(role.name + "=" + std::to_string(first) + "-" +
                     std::to_string(first + role.ranks - 1));
    first += role.ranks;
  }
  return joined(ranges, ",");
}

}  // namespace lockstep::inline v0::launch
