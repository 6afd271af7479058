#include "lockstep/comm/engines/hierarchical/hierarchical_backend.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "lockstep/comm/engines/gloo/gloo_backend.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/comm/engines/tcp/tcp_backend.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/engine_threads.h"
#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/gtest_suite.h"
#include "lockstep/testing/long_tests.h"

namespace lockstep::inline v0::hierarchical_backend_test {
namespace {

using hierarchical::HostMap;
using hierarchical::make_host_map;

// Ranks as threads; node_of[r] is the simulated host of rank r. `carrier`: "" or "gloo".
void run_hosts(const std::vector<int>& node_of,
               const std::function<void(Communicator&, HierarchicalBackend&)>& fn,
               std::chrono::nanoseconds timeout = std::chrono::seconds(30),
               const std::string& carrier = "") {
  const auto size = static_cast<int>(node_of.size());
  std::vector<std::vector<std::unique_ptr<Backend>>> insides;
  for (const std::vector<int>& host : make_host_map(node_of, 0).hosts)
    insides.push_back(make_local_backends(static_cast<int>(host.size())));
  const auto store = std::make_shared<HashStore>();
  const auto make = [&](int rank) {
    HostMap map = make_host_map(node_of, rank);
    std::unique_ptr<Backend> inside;
    if (map.mate_count() > 1) inside = std::move(insides[map.host()][map.index()]);
    const Topology topology{rank, size, map.index(), map.mate_count(), map.host()};
    HierarchicalOptions options{.rank = rank, .size = size, .carrier = carrier};
    options.make_carrier = [&](std::shared_ptr<Store> meeting, const std::vector<int>& members) {
      const auto at = std::find(members.begin(), members.end(), rank) - members.begin();
      return make_gloo_backend(std::move(meeting),
                               {.rank = static_cast<int>(at),
                                .size = static_cast<int>(members.size()),
                                .timeout = std::chrono::ceil<std::chrono::milliseconds>(timeout)});
    };
    auto between = make_tcp_engine(*store, {.rank = rank, .size = size}, Deadline::after(timeout));
    Carriers carriers = make_carriers(store, options, map);
    return std::pair(std::make_unique<HierarchicalBackend>(std::move(map), std::move(inside),
                                                           std::move(between), std::move(carriers)),
                     topology);
  };
  testing::run_engines(size, make, fn, timeout);
}

TEST(HostMap, OrdersHostsByTheirFirstRank) {
  const HostMap map = make_host_map(std::vector<int>{7, 3, 7, 3}, 2);
  EXPECT_EQ(map.hosts, (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(map.host(), 0);
  EXPECT_EQ(map.index(), 1);
  EXPECT_TRUE(map.equal);
  EXPECT_FALSE(map.contiguous);
  EXPECT_EQ(map.column(1), (std::vector<int>{2, 3}));
  EXPECT_EQ(make_host_map(std::vector<int>{0, 1, 1, 0}, 0).column(1), (std::vector<int>{3, 2}))
      << "in the order of the hosts";
  const HostMap unequal = make_host_map(std::vector<int>{0, 0, 1}, 0);
  EXPECT_FALSE(unequal.equal);
  EXPECT_TRUE(unequal.contiguous);
}

class HierarchicalOperations
    : public ::testing::TestWithParam<std::tuple<const char*, std::vector<int>>> {};

TEST_P(HierarchicalOperations, AgreeWithTheOracle) {
  const auto& [carrier, nodes] = GetParam();
  testing::expect_suite(
      [&](const auto& fn) {
        run_hosts(
            nodes, [&](Communicator& comm, HierarchicalBackend&) { fn(comm); },
            std::chrono::seconds(60), carrier);
      },
      [](const Communicator& comm) {
        return testing::SuiteOptions{.long_bytes = 100'003, .every_root = comm.size() < 6};
      });
}

// Under a sanitizer, only the ones that cover the most code.
std::vector<std::tuple<const char*, std::vector<int>>> hosts_of_operations() {
  if (kSanitized && !testing::long_tests())
    return {{"", {0, 1, 0, 1}}, {"", {0, 0, 1}}, {"gloo", {0, 0, 1}}};
  std::vector<std::tuple<const char*, std::vector<int>>> all;
  for (const char* carrier : {"", "gloo"}) {
    all.insert(all.end(), {{carrier, {0, 0, 1, 1}},     // equal
                           {carrier, {0, 1, 0, 1}},     // ... and interleaved
                           {carrier, {0, 0, 1}},        // unequal
                           {carrier, {1, 0, 0, 1, 1}},  // ... and interleaved
                           {carrier, {0, 1, 2}},        // one rank a host
                           {carrier, {0, 0}}});         // one host
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Hosts, HierarchicalOperations, ::testing::ValuesIn(hosts_of_operations()),
                         [](const auto& info) {
                           const std::string carrier = std::get<0>(info.param);
                           std::string name = carrier.empty() ? "tcp" : carrier;
                           for (const int node : std::get<1>(info.param))
                             name += std::to_string(node);
                           return name;
                         });

// Ranks far apart compare calls, which no carrier transports: without a carrier a sanitizer covers
// all of it.
TEST(HierarchicalBackend, AgreesWhereRanksAreFarApart) {
  std::vector<const char*> carriers{""};
  if (!kSanitized) carriers.push_back("gloo");
  for (const char* carrier : carriers) {
    testing::expect_apart(
        [&](const auto& fn) {
          run_hosts(
              {0, 0, 1}, [&](Communicator& comm, HierarchicalBackend&) { fn(comm); },
              std::chrono::seconds(60), carrier);
        },
        {.in_a_row = kSanitized || *carrier != '\0' ? 10'000 : 100'000});
  }
}

// Blocks of 4 MiB, several of which are pending. The order of additions is host by host, also where
// the ranks of a place do not ascend with their hosts.
TEST(HierarchicalBackend, AddsHostByHostWhateverTheSize) {
  for (const auto& [nodes, count] : {std::pair(std::vector<int>{0, 0, 1, 1}, int64_t{3}),
                                     {{0, 0, 1, 1}, 5'000'001},
                                     {{0, 1, 2, 2, 1, 0}, 3},
                                     {{0, 1, 2, 2, 1, 0}, 100'001}}) {
    std::vector<at::Tensor> inputs;
    for (size_t r = 0; r < nodes.size(); ++r)
      inputs.push_back(at::randn({count}).mul_(r % 2 == 1 ? 1e6 : 1));
    at::Tensor expected;
    for (const std::vector<int>& host : make_host_map(nodes, 0).hosts) {
      const at::Tensor inside = inputs[host[0]].add(inputs[host[1]]);
      expected = expected.defined() ? expected.add(inside) : inside;
    }
    run_hosts(nodes, [&](Communicator& comm, HierarchicalBackend&) {
      at::Tensor reduced = inputs[comm.rank()].clone();
      comm.reduce(reduced, comm.size() - 1);
      const bool is_root = comm.rank() == comm.size() - 1;
      EXPECT_TRUE(!is_root || reduced.equal(expected)) << count;
      std::vector<at::Tensor> tensors;
      std::vector<Work> works;
      for (int turn = 0; turn < 3; ++turn) {
        tensors.push_back(inputs[comm.rank()].clone());
        works.push_back(comm.iall_reduce(tensors.back()));
      }
      for (int turn = 2; turn >= 0; --turn) works[turn].wait();
      for (const at::Tensor& t : tensors) EXPECT_TRUE(t.equal(expected)) << count;
    });
  }
}

// Exactly 2 (H-1)/H of the buffer per host; nothing over TCP inside a host.
TEST(HierarchicalBackend, AnAllReduceSendsEachByteOnceOverTheLink) {
  for (const std::vector<int>& nodes :
       {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 0, 1, 1, 2, 2}}) {
    const auto size = static_cast<int>(nodes.size());
    const uint64_t hosts = nodes.size() / 2;
    const int64_t count = 1'179'648;  // divisible by all divisors used
    std::mutex mutex;
    std::map<int, uint64_t> sent;  // by host
    run_hosts(nodes, [&](Communicator& comm, HierarchicalBackend& backend) {
      comm.all_reduce(at::zeros({count}));
      const std::lock_guard lock(mutex);
      for (int r = 0; r < size; ++r) {
        if (nodes[r] == nodes[comm.rank()]) {
          EXPECT_EQ(backend.payload_sent(r), 0u);
        }
        sent[nodes[comm.rank()]] += backend.payload_sent(r);
      }
    });
    for (const auto& [host, bytes] : sent)
      EXPECT_EQ(bytes, 2 * (hosts - 1) * static_cast<uint64_t>(count) * 4 / hosts) << host;
  }
}

// 16-bit floats are summed in float32, host by host, and rounded once, for every size and carrier.
TEST(HierarchicalBackend, SixteenBitFloatsAreRoundedOnce) {
  for (const char* carrier : {"", "gloo"}) {
    for (const std::vector<int>& nodes :
         {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 0, 0, 1}}) {
      for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
        for (const int64_t count : {int64_t{3}, int64_t{100'001}, int64_t{3'500'003}}) {
          std::vector<at::Tensor> inputs, wide;
          for (int r = 0; r < 4; ++r) {
            inputs.push_back(at::randn({count}).mul_(r % 2 == 1 ? 100 : 1).to(dtype));
            wide.push_back(inputs.back().to(at::kFloat));
          }
          const at::Tensor sums = nodes[2] == 1 ? wide[0].add(wide[1]).add(wide[2].add(wide[3]))
                                                : wide[0].add(wide[1]).add(wide[2]).add(wide[3]);
          run_hosts(
              nodes,
              [&](Communicator& comm, HierarchicalBackend&) {
                at::Tensor t = inputs[comm.rank()].clone();
                comm.all_reduce(t);
                EXPECT_TRUE(t.equal(sums.to(dtype))) << carrier << " " << dtype << " " << count;
                t = inputs[comm.rank()].clone();
                comm.all_reduce(t, ReduceOp::kAvg);
                EXPECT_TRUE(t.equal(sums.div(4.0).to(dtype)))
                    << carrier << " average " << dtype << " " << count;
              },
              std::chrono::seconds(30), carrier);
        }
      }
    }
  }
}

// Partial sums travel as float32 and finished ones as 16 bits; where every host has one rank, all
// travel as 16 bits.
TEST(HierarchicalBackend, FinishedSixteenBitSumsTravelAsTheyAre) {
  const int64_t count = 1'179'648;
  for (const std::vector<int>& nodes :
       {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 0, 1, 1, 2, 2}, std::vector<int>{0, 0, 1},
        std::vector<int>{0, 1}}) {
    const HostMap map = make_host_map(nodes, 0);
    const auto hosts = static_cast<uint64_t>(map.host_count());
    std::mutex mutex;
    std::vector<uint64_t> sent(hosts);
    run_hosts(nodes, [&](Communicator& comm, HierarchicalBackend& backend) {
      comm.all_reduce(at::zeros({count}, at::kBFloat16));
      const std::lock_guard lock(mutex);
      for (int r = 0; r < comm.size(); ++r)
        sent[static_cast<size_t>(map.host_of[comm.rank()])] += backend.payload_sent(r);
    });
    const uint64_t width = map.host_count() == map.size() ? 2 + 2 : 4 + 2;
    for (const uint64_t bytes : sent)
      EXPECT_EQ(bytes, (hosts - 1) * static_cast<uint64_t>(count) * width / hosts);
  }
}

TEST(HierarchicalBackend, EveryThreadGetsTheRightErrorInTime) {
  int tried = 0;
  for (const auto& [carrier, nodes] :
       std::initializer_list<std::pair<const char*, std::vector<int>>>{
           {"", {0, 0, 1}}, {"", {0, 1, 1}}, {"gloo", {0, 0, 1}}}) {
    for (const testing::Fault& fault : testing::faults()) {
      if (fault.needs_process) continue;
      ++tried;
      run_hosts(
          nodes,
          [&](Communicator& comm, HierarchicalBackend&) {
            EXPECT_EQ(testing::run_fault(comm, fault, {}), "")
                << carrier << " " << fault.name << ", rank " << comm.rank();
          },
          testing::fault_timeout(fault), carrier);
    }
  }
  EXPECT_GE(tried, 27);
}

// Rank 1 speaks to no other host in a small all_reduce: its own host has to notice.
TEST(HierarchicalBackend, AnotherReductionInsideTheHostIsAMismatch) {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 0, 1}}) {
    run_hosts(nodes, [](Communicator& comm, HierarchicalBackend&) {
      const at::Tensor values = at::zeros({10});
      try {
        comm.all_reduce(values, comm.rank() == 1 ? ReduceOp::kSum : ReduceOp::kAvg);
        comm.barrier();
        ADD_FAILURE() << "no error on rank " << comm.rank();
      } catch (const Mismatch& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("all_reduce sum"), std::string::npos) << text;
        EXPECT_NE(text.find("all_reduce avg"), std::string::npos) << text;
      }
    });
  }
}

// A rank that waits for a rank of another host, which itself waits inside its host, names the rank
// that is late.
TEST(HierarchicalBackend, ATimeoutNamesTheLateRankOfAnotherHost) {
  constexpr int kLate = 4;
  const std::vector<std::function<void(Communicator&)>> calls = {
      [](Communicator& c) { c.barrier(); },
      [](Communicator& c) { c.all_reduce(at::zeros({100'000})); },
      [](Communicator& c) { c.all_reduce(at::zeros({10})); },
      [](Communicator& c) { c.broadcast(at::zeros({10}), kLate); },
      [](Communicator& c) { c.all_gather(at::zeros({10})); },
  };
  for (const std::vector<int>& nodes :
       {std::vector<int>{0, 0, 0, 1, 1, 1}, std::vector<int>{0, 1, 1, 1, 1}}) {
    for (size_t i = 0; i < calls.size(); ++i) {
      std::atomic<size_t> ended = 0;
      run_hosts(
          nodes,
          [&](Communicator& comm, HierarchicalBackend&) {
            comm.barrier();
            if (comm.rank() == kLate) {
              const Deadline deadline = Deadline::seconds(300);
              while (ended < nodes.size() - 1 && !deadline.expired())
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
              return;
            }
            try {
              calls[i](comm);
              comm.barrier();
              ADD_FAILURE() << "no error was thrown";
            } catch (const Timeout& error) {
              const std::string text = error.what();
              const size_t late = text.find("not arrived:");
              EXPECT_EQ(text.find("not arrived: rank 4, "), late) << text;
              EXPECT_EQ(text.find("; rank ", late) == std::string::npos ||
                            text.find(" that too;", late) != std::string::npos,
                        true)
                  << text;
            }
            ++ended;
          },
          std::chrono::seconds(1));
    }
  }
}

}  // namespace
}  // namespace lockstep::inline v0::hierarchical_backend_test
