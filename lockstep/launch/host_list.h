// Host lists as mpirun, horovodrun and Slurm write them. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep::inline v0::launch {

struct HostSlots {
  std::string host;
  int slots = 1;

  bool operator==(const HostSlots&) const = default;
};

// mpirun's -H: "a:2,b:2", "a", "user@b:4", "[fd00::7]:2". A host without a number has one slot; a
// repeated host gets more slots.
// Throws: InvalidArgument that quotes the text.
std::vector<HostSlots> parse_hosts(const std::string& text);

// Puts `ranks` ranks onto the hosts in their order, each filled before the next; hosts without
// ranks are left out.
// Throws: InvalidArgument when they do not fit.
std::vector<HostSlots> fill_hosts(const std::vector<HostSlots>& hosts, int ranks);

// Slurm's node lists: "n[001-003,7],gpu1" is n001, n002, n003, n7, gpu1; also several brackets in a
// name, "r[1-2]n[1-2]".
// Throws: InvalidArgument that quotes the text.
std::vector<std::string> expand_slurm_nodes(const std::string& text);

// Whether `a` precedes `b` when numbers inside count as numbers: node2 before node10.
bool host_before(const std::string& a, const std::string& b);

}  // namespace lockstep::inline v0::launch
