// A GoogleTest fixture for ranks on several hosts of this machine (network_namespaces.h).
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/network_namespaces.h"

namespace lockstep::inline v0::testing {

// The host of each rank, for `per_host` ranks on each of `hosts`.
inline std::vector<int> places(int hosts, int per_host) {
  std::vector<int> all;
  for (int rank = 0; rank < hosts * per_host; ++rank) all.push_back(rank / per_host);
  return all;
}

// Skips where the system gives no network namespaces.
class HostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = NetworkNamespaces::unavailable();
    if (!why.empty()) GTEST_SKIP() << "no network namespaces here: " << why;
  }
  // Makes the hosts in the test's own process; its ranks find themselves on their hosts.
  void make_hosts(int hosts) {
    if (!in_lone_rank()) network_ = std::make_unique<NetworkNamespaces>(hosts);
  }
  // hosts[r] is where rank r runs. Otherwise as expect_lone_ranks().
  void run(const std::vector<int>& hosts, const std::function<void()>& rank,
           const std::map<int, int>& ends = {}, const std::string& part = "") {
    LoneOptions options;
    options.deadline = std::chrono::seconds(120);
    if (network_) {
      options.hosts = {.of_rank = hosts,
                       .prefix = [this](int host) { return network_->prefix(host); },
                       .entrance = [this](int host) { return network_->entrance(host); },
                       .on = [this](int host, const auto& fn) { network_->on(host, fn); },
                       .address = network_->address(0)};
    }
    // gloo looks up this host's name, which the name service does not know.
    options.variables = {{"GLOO_SOCKET_IFNAME", "eth0"}};
    expect_lone_ranks(static_cast<int>(hosts.size()), rank, ends, std::move(options), part);
  }
  // null in the ranks
  std::unique_ptr<NetworkNamespaces> network_;
};

}  // namespace lockstep::inline v0::testing
