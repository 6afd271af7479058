// Ranks on several hosts, which are network namespaces of this machine.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/comm/hosts_test.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/opposite_orders_test.h"
#include "lockstep/core/errors.h"
#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/long_tests.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::inline v0::hosts_mp_test {
namespace {

using testing::HostsTest;
using testing::places;

// For a test's name.
std::string word(std::string backend) {
  std::replace(backend.begin(), backend.end(), ':', '_');
  return backend;
}

struct Case {
  const char* backend;
  int hosts;
  int per_host;
};
class HostOperations : public HostsTest, public ::testing::WithParamInterface<Case> {};

TEST_P(HostOperations, AgreeWithTheOracle) {
  const Case& c = GetParam();
  make_hosts(c.hosts);
  run(places(c.hosts, c.per_host), [&] {
    Communicator comm = init({.backend = c.backend, .timeout = std::chrono::seconds(60)});
    EXPECT_EQ(comm.local_size(), c.per_host);
    const testing::SuiteReport report = testing::run_operation_suite(
        comm, {.dtypes = {at::kFloat, at::kBFloat16, at::kLong, at::kBool},
               .long_bytes = 100'003,
               .every_root = comm.size() <= 4});
    for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
    EXPECT_GT(report.checked, 200);
    // A group across the hosts.
    Communicator column = *comm.split(comm.local_rank(), comm.rank());
    const at::Tensor t = at::ones({1000});
    column.all_reduce(t);
    EXPECT_EQ(t[999].item<float>(), c.hosts);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all = {{"tcp", 2, 2},
                           {"hierarchical", 2, 2},
                           {"hierarchical:gloo", 2, 2},
                           {"gloo", 2, 2},
                           {"tcp", 3, 1}};
  if (testing::long_tests())
    all.insert(all.end(), {{"hierarchical", 4, 2}, {"hierarchical:gloo", 3, 2}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Backends, HostOperations, ::testing::ValuesIn(cases()),
                         [](const auto& info) {
                           return word(info.param.backend) + std::to_string(info.param.hosts) +
                                  "x" + std::to_string(info.param.per_host);
                         });

// Two ranks on each of two hosts.
class HostGroups : public HostsTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void run_groups(void (*body)(Communicator&)) {
    make_hosts(2);
    run(places(2, 2), [&] {
      Communicator comm = init({.backend = GetParam(), .timeout = std::chrono::seconds(30)});
      body(comm);
      testing::throw_if_failed();
    });
  }
};

TEST_P(HostGroups, MayBeWaitedInInOppositeOrders) {
  run_groups(wait_in_opposite_orders);
}

TEST_P(HostGroups, DifferentOrdersAreNamed) {
  run_groups(call_in_different_orders);
}

INSTANTIATE_TEST_SUITE_P(Backends, HostGroups,
                         ::testing::Values("tcp", "gloo", "hierarchical", "hierarchical:gloo"),
                         [](const auto& info) { return word(info.param); });

TEST_F(HostsTest, TheDefaultIsHierarchicalOrTcp) {
  make_hosts(2);
  run({0, 0, 1}, [] {
    Communicator comm = init();
    EXPECT_EQ(comm.capabilities().backend, "hierarchical");
    Communicator row = *comm.split(comm.rank() == 0 ? 1 : 0, comm.rank());
    const at::Tensor t = at::ones({1000});
    row.all_reduce(t);
    EXPECT_EQ(t[0].item<float>(), comm.rank() == 0 ? 1 : 2);
  });
  run(
      {0, 1},
      [] {
        Communicator comm = init();
        EXPECT_EQ(comm.capabilities().backend, "tcp");
      },
      {}, "one a host");
}

// The bytes on each host's link, headers and acknowledgements included.
TEST_F(HostsTest, AHierarchicalAllReduceSendsEachByteOnce) {
  constexpr int64_t kCount = 6'553'600;  // 25 MiB of float32
  for (const int hosts : {2, 3}) {
    make_hosts(hosts);
    std::vector<uint64_t> before;
    const auto sent = [&](int host) { return network_->bytes_sent(host); };
    for (int h = 0; network_ && h < hosts; ++h) before.push_back(sent(h));
    run(
        places(hosts, 2),
        [] {
          Communicator comm = init({.backend = "hierarchical"});
          const at::Tensor t = at::ones({kCount});
          for (int i = 0; i < 4; ++i) comm.all_reduce(t);
          comm.barrier();
        },
        {}, std::to_string(hosts));
    if (!network_) continue;  // a rank of the other turn
    const double payload = 4.0 * 2 * (hosts - 1) / hosts * kCount * 4;
    for (int h = 0; h < hosts; ++h) {
      const auto bytes = static_cast<double>(sent(h) - before[static_cast<size_t>(h)]);
      EXPECT_GT(bytes, payload * 0.99) << h;
      EXPECT_LT(bytes, payload * 1.06) << h;
    }
    network_.reset();
  }
}

class HostFaults : public HostsTest,
                   public ::testing::WithParamInterface<std::tuple<const char*, testing::Fault>> {};

TEST_P(HostFaults, EverySurvivorGetsTheRightErrorInTime) {
  const auto& [backend, fault] = GetParam();
  make_hosts(2);
  std::map<int, int> ends;
  if (fault.end != 0) ends[testing::kFaultyRank] = fault.end;
  run(
      {0, 0, 1},
      [&backend = backend, &fault = fault] {
        Communicator comm = init({.backend = backend, .timeout = testing::fault_timeout(fault)});
        EXPECT_EQ(testing::run_fault(comm, fault, {}), "");
      },
      ends);
}

// The last fault combines what the others and gloo on one host have shown.
std::vector<std::tuple<const char*, testing::Fault>> faults_between_hosts() {
  std::vector<std::tuple<const char*, testing::Fault>> all;
  for (const char* backend : {"tcp", "hierarchical", "hierarchical:gloo"}) {
    const bool all_of_it = std::string(backend) != "hierarchical:gloo" || testing::long_tests();
    for (const testing::Fault& fault : testing::faults()) {
      if (all_of_it || fault.name == "KilledInside" || fault.name == "Stopped" ||
          fault.name == "AnotherShape")
        all.emplace_back(backend, fault);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Backends, HostFaults, ::testing::ValuesIn(faults_between_hosts()),
                         [](const auto& info) {
                           return word(std::get<0>(info.param)) + std::get<1>(info.param).name;
                         });

// The link of host 1 is cut while an endless loop of large sums uses it.
class CutLink : public HostsTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(CutLink, EndsEveryWaitByTheDeadline) {
  make_hosts(2);
  std::thread cutter;
  if (network_) {
    cutter = std::thread([this] {
      const Deadline deadline = Deadline::seconds(30);
      while (network_->processes(1).size() < 2 && !deadline.expired())
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      std::this_thread::sleep_for(std::chrono::seconds(3));
      network_->cut(1);
    });
  }
  run(places(2, 2), [] {
    Communicator comm = init({.backend = GetParam(), .timeout = std::chrono::seconds(20)});
    const at::Tensor warm = at::zeros({10});
    comm.all_reduce(warm);
    Communicator quick = comm;  // the same group
    const at::Tensor t = at::zeros({2'000'000});
    auto start = std::chrono::steady_clock::now();
    try {
      while (true) {
        start = std::chrono::steady_clock::now();
        Work work = quick.iall_reduce(t);
        work.wait(Deadline::seconds(4));
      }
    } catch (const Timeout& error) {
      EXPECT_NE(std::string(error.what()).find("all_reduce"), std::string::npos) << error.what();
    } catch (const PeerLost&) {
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(7));
  });
  if (cutter.joinable()) cutter.join();
}

INSTANTIATE_TEST_SUITE_P(Backends, CutLink,
                         ::testing::ValuesIn(testing::long_tests()
                                                 ? std::vector<const char*>{"tcp", "hierarchical",
                                                                            "hierarchical:gloo",
                                                                            "gloo"}
                                                 : std::vector<const char*>{"tcp", "hierarchical"}),
                         [](const auto& info) { return word(info.param); });

}  // namespace
}  // namespace lockstep::inline v0::hosts_mp_test
