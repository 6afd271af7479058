// A large tensor as the argument of a remote call between two hosts, which are network namespaces of this machine, against the
// same bytes over bare TCP and against what else one could take, in alternating rounds. Needs root.
//
//   build/release/bin/bench/rpc_hosts --rounds 7 --json rpc-hosts.json
//
// The table and the fields are those of `lockstep bench rpc`, whose contenders it starts.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/bench/rpc.h"
#include "lockstep/core/output.h"
#include "lockstep/testing/network_namespaces.h"

namespace lockstep::inline v0 {
namespace {

struct Options {
  std::string contenders;
  std::string rate;  // "": as fast as the machine goes
  std::string json;
  double megabytes = 100;
  double turn_ms = 1000;
  int rounds = 7;
};

int run(const Options& options) {
  const std::string why = testing::NetworkNamespaces::unavailable();
  if (!why.empty()) {
    std::fprintf(stderr, "no network namespaces here: %s\n", why.c_str());
    return 2;
  }
  check_output_file(options.json);
  testing::NetworkNamespaces network(2);
  if (!options.rate.empty()) network.shape(options.rate);
  // In the build, beside bin/bench/rpc_hosts.
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() /
                       "../../libexec/lockstep/lockstep-tools";
  bench::RpcOptions measured;
  measured.contenders = bench::parse_names("--contenders", options.contenders);
  measured.rounds = options.rounds;
  measured.tasks = {{.what = bench::RpcWorkload::kTensor,
                     .turn_ms = options.turn_ms,
                     .bytes = static_cast<int64_t>(options.megabytes * 1e6) / 4 * 4}};
  ::setenv("TP_SOCKET_IFNAME", "eth0", 1);  // libtorch's agent would ask for its host's name
  measured.listen = network.address(0);
  measured.prefix = [&](bool server) { return network.prefix(server ? 0 : 1); };
  measured.peers.folder = program.lexically_normal().parent_path() / "peers";
  bench::leave_out_absent(measured);
  const auto rows = bench::measure_rpc(measured, program.lexically_normal().string());
  std::fputs(bench::rpc_table(rows).c_str(), stdout);
  if (!options.json.empty()) std::ofstream(options.json) << bench::Row(rows).dump(2) << '\n';
  return 0;
}

}  // namespace
}  // namespace lockstep::inline v0

int main(int argc, char** argv) {
  lockstep::Options options;
  options.contenders = "lockstep,tcp-socket,libtorch,grpc";
  CLI::App app("a large tensor between two hosts made of network namespaces");
  app.add_option("--contenders", options.contenders);
  app.add_option("--rate", options.rate, "of the cable, as tc says it; empty: not shaped");
  app.add_option("--megabytes", options.megabytes)->check(CLI::Range(0.001, 10000.0));
  app.add_option("--turn-ms", options.turn_ms)->check(CLI::Range(1.0, 60000.0));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 10000));
  app.add_option("--json", options.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return lockstep::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
