// Connects the ranks of a HierarchicalBackend.
#include <numeric>

#include "lockstep/comm/engines/hierarchical/hierarchical_backend.h"
#include "lockstep/comm/engines/rounds/region.h"
#include "lockstep/comm/engines/shm/shm_backend.h"
#include "lockstep/comm/engines/tcp/tcp_backend.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0 {

std::vector<int> exchange_nodes(Store& store, const HierarchicalOptions& options,
                                Deadline deadline) {
  store.set("node/" + std::to_string(options.rank), std::to_string(options.node));
  std::vector<int> nodes;
  for (int r = 0; r < options.size; ++r) {
    const auto node = parse_int(store.get("node/" + std::to_string(r), deadline));
    if (!node) throw StoreError("rank " + std::to_string(r) + " shows no number of its host");
    nodes.push_back(static_cast<int>(*node));
  }
  return nodes;
}

Carriers make_carriers(const std::shared_ptr<Store>& store, const HierarchicalOptions& options,
                       const hierarchical::HostMap& map) {
  Carriers carriers;
  carriers.name = options.carrier;
  if (options.carrier.empty() || map.host_count() == 1) return carriers;
  std::vector<int> all_ranks(static_cast<size_t>(map.size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  carriers.all_ranks =
      options.make_carrier(std::make_shared<PrefixStore>("carrier", store), all_ranks);
  if (map.host_count() == map.size() || (!map.equal && map.index() > 0)) return carriers;
  const std::vector<int> line = map.column(map.equal ? map.index() : 0);
  carriers.line = options.make_carrier(
      std::make_shared<PrefixStore>("carrier" + std::to_string(line.front()), store), line);
  return carriers;
}

std::unique_ptr<HierarchicalBackend> make_hierarchical_backend(const std::shared_ptr<Store>& store,
                                                               const HierarchicalOptions& options,
                                                               Deadline deadline) {
  hierarchical::HostMap map =
      hierarchical::make_host_map(exchange_nodes(*store, options, deadline), options.rank);
  PrefixStore mesh("between", store);
  auto between = make_tcp_engine(
      mesh, {.rank = options.rank, .size = options.size, .one_host = map.host_count() == 1},
      deadline);
  std::unique_ptr<Backend> inside;
  if (map.mate_count() > 1) {
    PrefixStore host("host" + std::to_string(map.host()), store);
    inside = make_shm_backend(host, map.index(), rounds::default_shape(map.mate_count()), deadline);
  }
  Carriers carriers = make_carriers(store, options, map);
  return std::make_unique<HierarchicalBackend>(std::move(map), std::move(inside),
                                               std::move(between), std::move(carriers));
}

}  // namespace lockstep::inline v0
