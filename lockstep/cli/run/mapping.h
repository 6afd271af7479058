// mpirun's --bind-to and --map-by: which processors each rank gets, and which host. Pure.
#pragma once

#include <optional>
#include <string>

#include "lockstep/launch/binding.h"
#include "lockstep/launch/host_list.h"

namespace lockstep::inline v0::cli {

struct Mapping {
  launch::Binding binding;
  bool pin = true;  // false: --bind-to none
  launch::HostPlacing placing;
  // ppr:N:UNIT: so many ranks on each host, or on each of its units.
  std::optional<int> per_host;
  std::optional<int> per_unit;
  launch::CpuUnit unit = launch::CpuUnit::kSocket;  // of per_unit
};

// Open MPI's and MPICH's words; "" for a flag that is not given.
// Throws: UsageError that says which words there are.
Mapping parse_mapping(const std::string& bind_to, const std::string& map_by);

}  // namespace lockstep::inline v0::cli
