// NodePlan: which ranks each host has. Pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/net.h"

namespace lockstep::launch {

// A host as its agent introduced itself.
struct NodeIntroduction {
  int number = -1;      // given by the user or by the launching agent, from 0; -1: to be found
  std::string host;     // its name, for people
  std::string address;  // numeric; as the first agent sees it
  int pid = 0;          // the agent's
  int ranks = 1;
};

// The order in which hosts get their ranks, as indices into `nodes`: by number if they have one;
// else by the host's name (node2 before node10), its address, and its agent's pid.
std::vector<size_t> order_nodes(const std::vector<NodeIntroduction>& nodes);

// One host's place in the job.
struct NodePlan {
  int node_rank = 0;
  int nodes = 1;
  int first_rank = 0;  // of its local_ranks
  int local_ranks = 1;
  int world_size = 1;
  HostPort master;        // MASTER_ADDR, MASTER_PORT: on the host of rank 0, for a store of its own
  HostPort store;         // Lockstep's
  std::string interface;  // by which this host reaches the others; "": there are none
  int generation = 0;     // of the job's ranks, from 0: one more whenever all are started
  int restarts = 0;       // of all ranks after a failure so far
  std::string job = {};   // made up by who led first: all generations of a job have the same
};

// The places of all hosts, in the order of `nodes`, whose ranks follow `order`. A host without
// ranks (an agent that only starts others) has none to give and is not counted.
std::vector<NodePlan> assign_ranks(const std::vector<NodeIntroduction>& nodes,
                                   const std::vector<size_t>& order);

}  // namespace lockstep::launch
