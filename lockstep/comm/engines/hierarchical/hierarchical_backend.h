// HierarchicalBackend: ranks on several hosts, through shared memory inside a host and over TCP,
// gloo or MPI between hosts.
//
// Every rank of a host carries its own slice over the link, so that the ranks of a host together
// send each byte once: 2 (H-1)/H of the buffer for an all_reduce over H hosts, whatever the number
// of ranks on them. One rank carries all of a small all_reduce. Collectives run one after another,
// in the order of their start. All ranks are connected by TCP; over these connections they also
// compare their calls and learn of a broken group. Messages between ranks of one host go through
// its memory. Another engine, such as gloo or MPI, may carry the data of collectives between hosts:
// a part of a collective starts there once the ranks that share it have met over the connections,
// and so know that they mean the same call.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/hierarchical/host_map.h"
#include "lockstep/comm/engines/hierarchical/stages.h"
#include "lockstep/comm/engines/tcp/engine.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

// Engines that carry the data of collectives between hosts in place of the TCP connections.
struct Carriers {
  std::string name;                    // "gloo"; "": none
  std::unique_ptr<Backend> all_ranks;  // joins all ranks
  // Joins the ranks that have this rank's place on all hosts or, where hosts differ in their number
  // of ranks, the first rank of each. Null where those are all ranks, and on a rank that is not
  // among them.
  std::unique_ptr<Backend> line;
};

class HierarchicalBackend final : public Backend {
 public:
  // `between` joins all ranks. `inside` joins those of this host, by their places; null where this
  // rank is alone on its host.
  HierarchicalBackend(hierarchical::HostMap map, std::unique_ptr<Backend> inside,
                      std::unique_ptr<tcp::Engine> between, Carriers carriers = {});
  ~HierarchicalBackend() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  const char* refuses_caller() const noexcept override;
  std::unique_ptr<Request> start(const Call& call) override;
  SymmetricMemory allocate_shared(int64_t bytes) override;
  void progress() override;
  void set_siblings(SiblingProgress* siblings) override;
  bool lost(int rank) const override;
  Probe probe(int src, int tag) override;
  void abort(const Breakage& why) noexcept override;
  void interrupt(const Breakage& why) noexcept override;
  bool close() noexcept override;

  // Payload bytes that this rank has sent to `peer` over TCP so far.
  uint64_t payload_sent(int peer) const;

 private:
  class Operation;
  class LocalMessage;
  class RemoteMessage;
  template <typename P>
  class PendingRequest;

  struct Crossing;

  bool advance();
  bool advance(Operation& op);
  // Starts the operation once its members have agreed on it, and progresses it. True if anything
  // completed.
  bool carry(Operation& op);
  void begin_crossing(Operation& op, hierarchical::Stage& stage);
  // Runs `fn` and converts an error of the engine inside, which counts ranks by their places, to
  // one of the group.
  void guarded(const Call& call, const std::function<void()>& fn);
  // A rank that leaves a broken group passes on the reason before it leaves its host's engine.
  // Throws that reason if it has arrived.
  void hear_between();
  // Runs `fn` and converts an error of a carrier, which knows no ranks, to one of the group.
  void guarded(const Call& call, const std::vector<int>& members, const std::function<void()>& fn);
  void give_up() noexcept;

  Capabilities capabilities_;
  hierarchical::HostMap map_;
  std::unique_ptr<Backend> inside_;
  Carriers carriers_;
  std::unique_ptr<tcp::Engine> between_;
  bool given_up_ = false;
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
  // The engine that carries data between hosts; "": the TCP connections. `make_carrier` joins
  // `members`, ranks of this group in the order in which they add, and is called by all of them.
  std::string carrier = {};
  std::function<std::unique_ptr<Backend>(std::shared_ptr<Store> store,
                                         const std::vector<int>& members)>
      make_carrier = {};
};

// Connects the ranks. `store` is used by this group alone.
// Collective: all ranks call it.
// Throws: as make_tcp_engine() and make_shm_backend().
std::unique_ptr<HierarchicalBackend> make_hierarchical_backend(const std::shared_ptr<Store>& store,
                                                               const HierarchicalOptions& options,
                                                               Deadline deadline);

// Makes the engines between hosts that this rank is part of.
// Collective: all ranks call it.
// Throws: their errors.
Carriers make_carriers(const std::shared_ptr<Store>& store, const HierarchicalOptions& options,
                       const hierarchical::HostMap& map);

// The `node` of every rank.
// Collective: all ranks call it. Each store serves one call.
std::vector<int> exchange_nodes(Store& store, const HierarchicalOptions& options,
                                Deadline deadline);

}  // namespace lockstep::inline v0
