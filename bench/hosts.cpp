// How long an all_reduce takes over several hosts, which are network namespaces of this machine
// with links of a given rate, by backend, in alternating rounds. Needs root.
//
//   build/release/bin/bench/hosts --hosts 2 --per-host 2 --rate 1gbit --mib 25
//
// A line a backend: the median time and the range of the rounds, and the first backend's time over
// this one's, round by round: its median and range.
#include <ATen/ops/ones.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/testing/lone_ranks.h"
#include "lockstep/testing/network_namespaces.h"

namespace lockstep::inline v0 {
namespace {

struct Options {
  int hosts = 2;
  int per_host = 2;
  std::string rate = "1gbit";
  double mib = 25;
  int rounds = 11;
  std::vector<std::string> backends = {"gloo", "hierarchical", "tcp"};
};

struct Spread {
  double low, median, high;
};

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

void measure(const Options& options) {
  std::vector<Communicator> comms;
  for (const std::string& backend : options.backends) comms.push_back(init({.backend = backend}));
  const at::Tensor t = at::ones({static_cast<int64_t>(options.mib * (1 << 20) / 4)});
  std::vector<std::vector<double>> ms(comms.size());
  for (int round = -1; round < options.rounds; ++round) {  // the first is not counted
    for (size_t b = 0; b < comms.size(); ++b) {
      comms[b].barrier();
      const auto start = std::chrono::steady_clock::now();
      comms[b].all_reduce(t, ReduceOp::kMax);
      comms[b].barrier();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      if (round >= 0) ms[b].push_back(took.count());
    }
  }
  if (comms.front().rank() != 0) return;
  std::printf("%-14s %9s %20s %7s %17s\n", "backend", "median ms", "range", "ratio", "range");
  for (size_t b = 0; b < comms.size(); ++b) {
    std::vector<double> ratios;
    for (size_t round = 0; round < ms[b].size(); ++round)
      ratios.push_back(ms[0][round] / ms[b][round]);
    const Spread time = spread_of(ms[b]);
    const Spread ratio = spread_of(ratios);
    std::printf("%-14s %9.1f %9.1f - %8.1f %7.2f %8.2f - %6.2f\n", options.backends[b].c_str(),
                time.median, time.low, time.high, ratio.median, ratio.low, ratio.high);
  }
}

int run(const Options& options, std::vector<std::string> arguments) {
  std::unique_ptr<testing::NetworkNamespaces> network;
  testing::LoneOptions lone{
      .deadline = std::chrono::minutes(10), .name = "hosts", .arguments = std::move(arguments)};
  if (!testing::in_lone_rank()) {
    const std::string why = testing::NetworkNamespaces::unavailable();
    if (!why.empty()) {
      std::fprintf(stderr, "no network namespaces here: %s\n", why.c_str());
      return 2;
    }
    network = std::make_unique<testing::NetworkNamespaces>(options.hosts);
    if (!options.rate.empty()) network->shape(options.rate);
    std::printf("%d hosts x %d ranks, %s, float32 all_reduce of %g MiB\n", options.hosts,
                options.per_host, options.rate.empty() ? "unshaped" : options.rate.c_str(),
                options.mib);
    lone.hosts.prefix = [&](int host) { return network->prefix(host); };
    lone.hosts.on = [&](int host, const auto& fn) { network->on(host, fn); };
    lone.hosts.address = network->address(0);
    for (int r = 0; r < options.hosts * options.per_host; ++r)
      lone.hosts.of_rank.push_back(r / options.per_host);
    lone.variables = {{"GLOO_SOCKET_IFNAME", "eth0"}};
  }
  int code = 0;
  for (const testing::LoneRank& rank :
       testing::run_lone_ranks(options.hosts * options.per_host, [&] { measure(options); }, lone)) {
    std::fputs(rank.output.c_str(), stdout);
    if (!rank.status.ok()) code = 1;
  }
  return code;
}

}  // namespace
}  // namespace lockstep::inline v0

int main(int argc, char** argv) {
  lockstep::Options options;
  CLI::App app("all_reduce over several hosts made of network namespaces");
  app.add_option("--hosts", options.hosts)->check(CLI::Range(1, 200));
  app.add_option("--per-host", options.per_host)->check(CLI::Range(1, 64));
  app.add_option("--rate", options.rate, "of each link, as tc says it; empty: not shaped");
  app.add_option("--mib", options.mib);
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 10000));
  app.add_option("--backends", options.backends)->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  try {
    return lockstep::run(options, {argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
