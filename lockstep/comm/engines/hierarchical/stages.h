// Stages: an operation of all ranks, as a sequence of operations inside the hosts and between them.
// They are made from the call and the map alone; HierarchicalBackend carries them out.
//
//   all_reduce      reduce_scatter inside the host; all_reduce of the slice among the ranks of
//                   equal place on all hosts; all_gather inside the host. In blocks: while a block
//                   is between the hosts, the next one is reduced inside them. A small one: to the
//                   first rank of each host, among those, and from there to its host.
//   reduce          inside the host, to the rank of the root's place; among those, to the root
//   broadcast       from the root to the ranks of its place on the other hosts; inside the hosts
//   all_gather      among the ranks of equal place; then inside the host
//   reduce_scatter  inside the host, to the ranks of the receivers' places; among equal places
//   barrier         inside, between the first ranks, inside
//   gather, scatter, all_to_all: directly, every part crosses the link once
//
// Where the hosts have different numbers of ranks, the first rank of each stands for its host. One
// group of ranks besides that of all ranks therefore suffices between the hosts, and an engine that
// knows only fixed groups can carry the data there.
//
// float16 and bfloat16 are widened to float32 and rounded once, at the end. Between the hosts,
// complete sums of all_reduce travel as 16 bits; partial sums travel as float32, unless there is
// one rank per host.
//
// Sums are made host by host, in the order of the ranks inside each, and then over the hosts. Every
// rank and every run gets the same bits, but they differ from those of a backend that adds in rank
// order.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/backend/capabilities.h"
#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/engines/hierarchical/host_map.h"
#include "lockstep/comm/engines/tcp/exchange.h"

namespace lockstep::inline v0::hierarchical {

struct Stage {
  enum class Kind : uint8_t {
    kInside,  // `call` among the ranks of this host, by their places
    kStart,  // `call` among `members`, ranks of all hosts, without waiting; the n-th of its kind ..
    kAwait,  // .. ends here, where exchange == n
    kWork,   // work()
  };
  Kind kind = Kind::kWork;
  Call call = {};
  std::vector<int> members = {};
  int exchange = 0;
  std::function<void()> work = {};
};

struct StageOptions {
  int64_t block_bytes = 4 << 20;  // size of an all_reduce's block; one block is under way at a time
  // Capabilities of the engine that carries data between the hosts; null: tcp::Exchange, which can
  // do all operations.
  const Capabilities* carrier = nullptr;
  // Whether its reduce_scatter moves half as much as its all_reduce.
  bool scatters_well = true;
};

struct Stages {
  std::vector<Stage> list;
  std::vector<tcp::ScratchPool::Block> scratch;  // memory that the stages use
};

Stages make_stages(const Call& call, const HostMap& map, tcp::ScratchPool& pool,
                   const StageOptions& options = {});

}  // namespace lockstep::inline v0::hierarchical
