// HierarchicalBackend: ranks on several hosts; through shared memory inside a host, over TCP
// between hosts.
//
// Every rank of a host carries its own slice over the link, so that the ranks of a host together
// send each byte once: 2 (H-1)/H of the buffer for an all_reduce over H hosts, whatever the number
// of ranks on them. Collectives run one after another, in the order of their start. Between all
// ranks there are TCP connections, over which they also compare their calls and hear of a broken
// group; messages between ranks of one host go through its memory.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/hierarchical/host_map.h"
#include "lockstep/comm/hierarchical/stages.h"
#include "lockstep/comm/tcp/engine.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep {

class HierarchicalBackend final : public Backend {
 public:
  // `between` joins all ranks; `inside` those of this host, by their places; null where this rank
  // is alone on it.
  HierarchicalBackend(hierarchical::HostMap map, std::unique_ptr<Backend> inside,
                      std::unique_ptr<tcp::Engine> between);
  ~HierarchicalBackend() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  std::unique_ptr<Request> start(const Call& call) override;
  void progress() override;
  bool lost(int rank) const override;
  Probe probe(int src, int tag) override;
  void abort(const std::string& reason) noexcept override;

  // Payload bytes that this rank has sent to `peer` over TCP so far.
  uint64_t payload_sent(int peer) const;

 private:
  class Operation;
  class LocalMessage;
  class RemoteMessage;
  template <typename P>
  class PendingRequest;

  bool advance();
  bool advance(Operation& op);
  // Makes an error of the engine inside, which counts ranks by places, one of the group.
  void guarded(const Call& call, const std::function<void()>& fn);
  // A rank that leaves a broken group has passed on why before it leaves its host's engine: throws
  // that, if it is here.
  void hear_between();

  Capabilities capabilities_;
  hierarchical::HostMap map_;
  std::unique_ptr<Backend> inside_;
  std::unique_ptr<tcp::Engine> between_;
  tcp::ScratchPool scratch_;
  std::deque<std::shared_ptr<Operation>> queue_;
  uint64_t inside_sequence_ = 0;
  uint64_t inside_messages_ = 0;
  std::shared_ptr<int> local_messages_ = std::make_shared<int>(0);  // pending
};

struct HierarchicalOptions {
  int rank = 0;
  int size = 1;
  int node = 0;  // equal on the ranks of one host, and different on those of others
};

// Connects the ranks. Collective. `store` is used by this group alone. Throws as make_tcp_engine()
// and make_shm_backend().
std::unique_ptr<HierarchicalBackend> make_hierarchical_backend(std::shared_ptr<Store> store,
                                                               const HierarchicalOptions& options,
                                                               Deadline deadline);

// The `node` of every rank. Collective. Each store serves one call.
std::vector<int> exchange_nodes(Store& store, const HierarchicalOptions& options,
                                Deadline deadline);

}  // namespace lockstep
