// run_on_staged, run_on_peer: ranks as threads over these engines, on devices that the host plays.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/peer/peer_backend.h"
#include "lockstep/comm/engines/staged/staged_backend.h"
#include "lockstep/comm/engines/tcp/tcp_backend.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0::testing {

// So that tensors of some hundred elements take several windows, and go both ways.
inline constexpr PeerSizes kFewPeerBytes{.slot_bytes = 2048, .whole_up_to = 512};

struct StagedRanks {
  bool over_tcp = false;  // else over local
  bool peer = false;      // by the engine peer, over local
  int devices = 3;        // that the ranks share
  StagedSizes sizes = {};
  // Small blocks: all of a block's pages are opened and closed for every operation.
  PeerSizes peer_sizes = {.slot_bytes = 1 << 20};
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  bool alone = false;  // without an engine for the host's tensors
};

// The engines of all ranks and of groups.
class StagedGroups final : public GroupMaker {
 public:
  explicit StagedGroups(const StagedRanks& ranks) : ranks_(ranks) {}

  Engines make(const std::string& name, const Topology& place, const std::vector<int>& members,
               Deadline deadline) override {
    const auto on_host = [&](const std::string& meeting) -> std::unique_ptr<Backend> {
      PrefixStore store(meeting, store_);
      if (ranks_.over_tcp)
        return make_tcp_backend(store, {.rank = place.rank, .size = place.size}, deadline);
      return local_->make(meeting, place, members, deadline).own;
    };
    const at::Device device(
        at::kCUDA,
        static_cast<at::DeviceIndex>(members[static_cast<size_t>(place.rank)] % ranks_.devices));
    auto below = on_host(name + "/staged");
    Engines engines;
    engines.own = ranks_.peer ? make_peer_backend(std::move(below), device, place.rank, place.size,
                                                  deadline, ranks_.peer_sizes)
                              : make_staged_backend(std::move(below), device, place.rank,
                                                    place.size, ranks_.sizes);
    if (!ranks_.alone) engines.host = on_host(name + "/host");
    return engines;
  }
  void settle(const std::string& name) noexcept override {
    for (const char* of : {"/staged", "/host"}) local_->settle(name + of);
  }
  Store& store() override { return *store_; }

 private:
  StagedRanks ranks_;
  std::shared_ptr<GroupMaker> local_ = make_local_groups();
  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

// fn(comm) on each rank, its device the current one. What a rank throws is a failure of the test.
template <typename Run>
void run_on_staged(int size, const Run& fn, const StagedRanks& ranks = {}) {
  const auto groups = std::make_shared<StagedGroups>(ranks);
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Topology place{rank, size, rank, size, 0};
        auto origin = std::make_shared<GroupOrigin>(
            GroupOrigin{.maker = groups, .name = "all", .members = members});
        Engines engines =
            groups->make("all", place, members, Deadline::after(std::chrono::seconds(60)));
        Communicator comm(std::move(engines.own), place,
                          {.timeout = ranks.timeout, .origin = std::move(origin)},
                          std::move(engines.host));
        const c10::DeviceGuard guard(comm.device());
        try {
          fn(comm);
        } catch (const std::exception& error) {
          comm.abort(error.what());
          throw;
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename Run>
void run_on_peer(int size, const Run& fn, StagedRanks ranks = {}) {
  ranks.peer = true;
  run_on_staged(size, fn, ranks);
}

}  // namespace lockstep::inline v0::testing
