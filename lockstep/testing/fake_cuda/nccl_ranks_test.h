// run_on_nccl: ranks as threads over the engine nccl, each with a device that the host plays.
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
#include "lockstep/comm/group_maker.h"
#include "lockstep/comm/nccl/nccl_backend.h"
#include "lockstep/comm/side_channel/checked_backend.h"
#include "lockstep/comm/side_channel/shared_channel.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::testing {

// A rank's engines, for all ranks and for groups; those meet in `store`.
class NcclGroups final : public GroupMaker {
 public:
  explicit NcclGroups(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  std::unique_ptr<Backend> make(const std::string& name, const Topology& place,
                                const std::vector<int>& members, Deadline deadline) override {
    const auto meeting = std::make_shared<PrefixStore>(name, store_);
    const int device = members[static_cast<size_t>(place.rank)];
    auto engine = make_nccl_backend(
        meeting, {.rank = place.rank, .size = place.size, .device = device}, deadline);
    auto channel = side_channel::make_shared_channel(*meeting, place.rank, place.size, deadline);
    return make_checked_backend(std::move(engine), std::move(channel), place.rank, false);
  }
  void settle(const std::string&) noexcept override {}
  Store& store() override { return *store_; }

 private:
  std::shared_ptr<Store> store_;
};

// fn(comm) on each rank, its device the current one. What a rank throws is a failure of the test.
template <typename Run>
void run_on_nccl(int size, const Run& fn,
                 std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
  const auto store = std::make_shared<HashStore>();
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Topology place{rank, size, rank, size, 0};
        const auto groups = std::make_shared<NcclGroups>(store);
        auto origin = std::make_shared<GroupOrigin>(
            GroupOrigin{.maker = groups, .name = "all", .members = members});
        Communicator comm(
            groups->make("all", place, members, Deadline::after(std::chrono::seconds(60))), place,
            {.timeout = timeout, .origin = std::move(origin)});
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

}  // namespace lockstep::testing
