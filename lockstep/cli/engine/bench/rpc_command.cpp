#include "lockstep/cli/engine/bench/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/bench/rpc.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::engine {
using namespace bench;
namespace {

struct RpcArguments {
  bench::RpcOptions measured;
  std::string json;
  std::string svg;
};

RpcArguments parse_rpc_arguments(const Arguments& arguments) {
  CLI::App app(
      "Measures remote calls between two processes of this host: each contender is a server and a "
      "client of its own, and they take turns in alternating rounds.",
      "lockstep bench rpc");
  RpcArguments result;
  RpcTask task;
  double megabytes = 100;
  std::string whats = "small,flight,tensor";
  std::string contenders =
      "lockstep,lockstep-workers,unix-socket,tcp-socket,memcpy,libtorch,libtorch-shm,grpc,ray";
  app.add_option("--what", whats,
                 "small: synchronous calls of a function that adds two integers; flight: many such "
                 "calls under way at once; tensor: a large one as an argument [" +
                     whats + "]")
      ->type_name("NAME,...");
  app.add_option("--contenders", contenders,
                 joined(rpc_contenders()) + " [" + contenders +
                     "]; times are compared with the first one's. The sockets make no calls, they "
                     "only move the bytes")
      ->type_name("NAME,...");
  app.add_option("--rounds", result.measured.rounds, "how often the contenders take turns [7]");
  app.add_option("--turn-ms", task.turn_ms, "how long a turn of small or tensor is, about [1000]");
  app.add_option("--calls", task.calls, "of a flight [100000]");
  app.add_option("--threads", task.threads, "that make them [8]");
  app.add_option("--megabytes", megabytes, "of the tensor, 1e6 bytes each [100]");
  add_peers(app, result.measured.peers, "for Ray");
  app.add_option("--json", result.json, "write the rows to this file")->type_name("FILE");
  app.add_option("--svg", result.svg, "draw the times to this file")->type_name("FILE");
  cli::add_example(app, {"lockstep bench rpc --contenders lockstep,unix-socket --what small"});
  parse(app, arguments);
  result.measured.contenders =
      parse_choices("--contenders", "contender", contenders, rpc_contenders());
  if (result.measured.rounds < 1 || !(task.turn_ms > 0) || task.threads < 1 ||
      task.calls < task.threads) {
    throw InvalidArgument(
        "--rounds, --turn-ms and --threads must be 1 or more each, --calls no fewer than "
        "--threads");
  }
  if (!(megabytes > 0 && megabytes <= 10'000))
    throw InvalidArgument("--megabytes must be above 0 and at most 10000");
  task.bytes = std::max<int64_t>(1, static_cast<int64_t>(megabytes * 1e6) / 4) * 4;
  for (const RpcWorkload what : parse_rpc_workloads(whats)) {
    task.what = what;
    result.measured.tasks.push_back(task);
  }
  return result;
}

}  // namespace

int bench_rpc(const Arguments& arguments) {
  return run_guarded("bench rpc", [&] {
    // Internal: "--process CONTENDER ..." is a process of a contender.
    if (!arguments.empty() && arguments[0] == "--process")
      return run_rpc_contender({arguments.begin() + 1, arguments.end()});
    RpcArguments parsed = parse_rpc_arguments(arguments);
    check_result_files({parsed.json, parsed.svg});
    leave_out_absent(parsed.measured);
    const std::vector<Row> rows = measure_rpc(parsed.measured, self().string());
    std::cout << rpc_table(rows) << std::flush;
    write_json(parsed.json, rows);
    if (!parsed.svg.empty()) write_output_file(parsed.svg, rpc_svg(rows));
    return 0;
  });
}

}  // namespace lockstep::inline v0::engine
