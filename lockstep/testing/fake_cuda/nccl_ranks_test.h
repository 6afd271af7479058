// run_on_nccl: ranks as threads over the engine nccl, each with a device that the host plays.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/nccl/nccl_backend.h"
#include "lockstep/comm/engines/side_channel/checked_backend.h"
#include "lockstep/comm/engines/side_channel/shared_channel.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0::testing {

// A rank's engines, for all ranks and for groups; those meet in `store`, and the host's are of `hosts`,
// which all ranks share.
class NcclGroups final : public GroupMaker {
 public:
  // Around a group's engine, by the group's name.
  using Around =
      std::function<std::unique_ptr<Backend>(const std::string&, std::unique_ptr<Backend>)>;
  NcclGroups(std::shared_ptr<Store> store, std::shared_ptr<GroupMaker> hosts, Around around = {})
      : store_(std::move(store)), hosts_(std::move(hosts)), around_(std::move(around)) {}

  Engines make(const std::string& name, const Topology& place, const std::vector<int>& members,
               Deadline deadline) override {
    const auto meeting = std::make_shared<PrefixStore>(name, store_);
    const int device = members[static_cast<size_t>(place.rank)];
    auto engine = make_nccl_backend(
        meeting, {.rank = place.rank, .size = place.size, .device = device}, deadline);
    auto channel = side_channel::make_shared_channel(*meeting, place.rank, place.size, deadline);
    auto own = make_checked_backend(std::move(engine), std::move(channel), place.rank);
    return {.own = around_ ? around_(name, std::move(own)) : std::move(own),
            .host = std::move(hosts_->make(name, place, members, deadline).own)};
  }
  void settle(const std::string& name) noexcept override { hosts_->settle(name); }
  Store& store() override { return *store_; }

 private:
  std::shared_ptr<Store> store_;
  std::shared_ptr<GroupMaker> hosts_;
  Around around_;
};

// fn(comm) on each rank, its device the current one. What a rank throws is a failure of the test.
// `alone`: without the host's engine, so that nccl carries everything. `around(rank)`: NcclGroups::Around.
template <typename Run>
void run_on_nccl(int size, const Run& fn,
                 std::chrono::nanoseconds timeout = std::chrono::seconds(60), bool alone = false,
                 const std::function<NcclGroups::Around(int)>& around = {}) {
  const auto store = std::make_shared<HashStore>();
  const std::shared_ptr<GroupMaker> hosts = make_local_groups();
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Topology place{rank, size, rank, size, 0};
        const auto groups = std::make_shared<NcclGroups>(
            store, hosts, around ? around(rank) : NcclGroups::Around());
        auto origin = std::make_shared<GroupOrigin>(
            GroupOrigin{.maker = groups, .name = "all", .members = members});
        Engines engines =
            groups->make("all", place, members, Deadline::after(std::chrono::seconds(60)));
        if (alone) engines.host = nullptr;
        Communicator comm(std::move(engines.own), place,
                          {.timeout = timeout, .origin = std::move(origin)},
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

}  // namespace lockstep::inline v0::testing
