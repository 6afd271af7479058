// Roles: ranks of one job that do different work (parameter servers, trainers), each role with its
// own restart policy. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::launch {

// Its ranks are numbered one after another, after those of the roles before it.
struct Role {
  std::string name;      // of letters, digits, '.', '_' and '-'
  int ranks = 1;         // at least 1
  int restarts = 0;      // how often each of its ranks is restarted alone after a failure
  bool service = false;  // its ranks serve those of other roles and are ended after them

  bool operator==(const Role&) const = default;
};

// From "NAME=COUNT[,restarts=N][,service]".
// Throws: InvalidArgument, one line.
LOCKSTEP_API Role parse_role(const std::string& text);

// Throws InvalidArgument, one line: a name twice, too many ranks, or nothing but services.
LOCKSTEP_API void check_roles(std::span<const Role> roles);

// The ranks of all roles together.
LOCKSTEP_API int rank_count(std::span<const Role> roles);

// A rank of the job as a rank of its role.
struct RolePlace {
  size_t role = 0;  // index into the roles
  int rank = 0;     // within the role, from 0
};
// `rank` is one of rank_count(roles).
LOCKSTEP_API RolePlace place_in_role(std::span<const Role> roles, int rank);

// "ps 0", for messages; "" where there are no roles.
LOCKSTEP_API std::string name_in_role(std::span<const Role> roles, int rank);

// The ranks of each role, in the form of LOCKSTEP_ROLES: "ps=0-0,trainer=1-4".
LOCKSTEP_API std::string role_ranges(std::span<const Role> roles);

}  // namespace lockstep::inline v0::launch
