#include "lockstep/launch/node_plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "lockstep/launch/host_list.h"

namespace lockstep::inline v0::launch {

std::vector<size_t> order_nodes(const std::vector<NodeIntroduction>& nodes) {
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) {
    const NodeIntroduction &a = nodes[i], &b = nodes[j];
    if (a.number != b.number) return a.number < b.number;
    if (a.host != b.host) return host_before(a.host, b.host);
    if (a.address != b.address) return host_before(a.address, b.address);
    return a.pid < b.pid;
  });
  return order;
}

std::vector<NodePlan> assign_ranks(const std::vector<NodeIntroduction>& nodes,
                                   const std::vector<size_t>& order) {
  std::vector<NodePlan> plans(nodes.size());
  int next_rank = 0, next_node = 0;
  for (const size_t i : order) {
    plans[i].local_ranks = nodes[i].ranks;
    if (nodes[i].ranks == 0) continue;
    plans[i].node_rank = next_node++;
    plans[i].first_rank = next_rank;
    next_rank += nodes[i].ranks;
  }
  for (NodePlan& plan : plans) {
    plan.nodes = next_node;
    plan.world_size = next_rank;
  }
  return plans;
}

}  // namespace lockstep::inline v0::launch
