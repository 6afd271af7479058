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

// A host file, whose name is `file`. A line is one host in the words of Open MPI, DeepSpeed and
// Horovod ("a slots=2"; max_slots has no effect) or of MPICH and Intel MPI ("a:2"). What follows '#'
// is a comment. A host without a number has one slot; a repeated host gets more slots.
// Throws: InvalidArgument that names the file and the line, also for a file without hosts.
std::vector<HostSlots> parse_host_file(const std::string& text, const std::string& file);

// How ranks are put onto hosts.
struct HostPlacing {
  bool by_node = false;        // by turns, one on each host, instead of filling one after another
  bool oversubscribe = false;  // more ranks than slots, which the hosts then get by turns
};

// Puts `ranks` ranks onto the hosts; hosts without ranks are left out. `source` is what gave the
// slots, for the error: "-H".
// Throws: InvalidArgument when they do not fit.
std::vector<HostSlots> fill_hosts(const std::vector<HostSlots>& hosts, int ranks,
                                  const HostPlacing& placing = {},
                                  const std::string& source = "-H");

// Slurm's node lists: "n[001-003,7],gpu1" is n001, n002, n003, n7, gpu1; also several brackets in a
// name, "r[1-2]n[1-2]".
// Throws: InvalidArgument that quotes the text.
std::vector<std::string> expand_slurm_nodes(const std::string& text);

// Whether `a` precedes `b` when numbers inside count as numbers: node2 before node10.
bool host_before(const std::string& a, const std::string& b);

}  // namespace lockstep::inline v0::launch
