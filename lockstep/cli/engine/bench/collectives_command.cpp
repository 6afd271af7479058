#include "lockstep/cli/engine/bench/collectives_command.h"

#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/cli/option_parsing.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/output.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/report/table.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::engine {
using namespace bench;
namespace {

// Other processes may keep this many processors busy without a warning.
constexpr double kDisturbed = 0.05;

void report_rows(const BenchArguments& arguments, const std::vector<Row>& rows) {
  const std::vector<Row> fits = fit_rows(rows);
  std::cout << bench_table(rows) << library_lines(rows);
  if (!fits.empty())
    std::cout << "\nTime of an operation = alpha + beta x size:\n" << fit_table(fits);
  double others = 0;
  for (const Row& row : rows) others = std::max(others, row.at("others_cpus").get<double>());
  if (others > kDisturbed) {
    std::cout << "\nOther processes used up to " << fixed(others, 2)
              << " processors meanwhile: measure again when the machine is quiet.\n";
  }
  std::cout << std::flush;
  write_json(arguments.json, rows);
  write_json(arguments.fit, fits);
  if (!arguments.svg.empty()) write_output_file(arguments.svg, bench_svg(rows));
}

int run_rank(const BenchArguments& arguments) {
  measure_collectives(arguments.measured, [&](const std::vector<Row>& rows) {
    if (arguments.rows_to.empty())
      report_rows(arguments, rows);
    else
      std::ofstream(arguments.rows_to) << Row(rows);
  });
  return 0;
}

int start_ranks(const BenchArguments& parsed, int64_t rank_count,
                const std::vector<std::string>& command) {
  const int nproc = static_cast<int>(rank_count);
  if (!needs_mpirun(parsed.measured.backends)) {
    launch::LaunchOptions options;
    options.command = command;
    options.program = command[0];
    options.nproc = nproc;
    options.threads_per_rank = 1;
    options.pin = false;  // the ranks do it, as under mpirun
    return launch::launch(options).exit_code;
  }
  std::map<std::string, std::string> env;
  const Terminal terminal = find_terminal(STDERR_FILENO, process_env());
  if (terminal.interactive)  // the ranks' stderr is a pipe of mpirun's
    env = {{"LOCKSTEP_TTY", "1"}, {"LOCKSTEP_COLUMNS", std::to_string(terminal.columns)}};
  const ExitStatus status =
      launch::run_mpirun(launch::find_mpirun(process_env()),
                         {.nproc = nproc, .command = command, .env = env, .no_input = true});
  return status.signal != 0 ? 128 + status.signal : status.exit_code;
}

// Runs each number of ranks in turn. The rows come back through memory without a name, so that
// nothing is left behind.
int start_all(const BenchArguments& parsed, const Arguments& arguments) {
  std::vector<std::string> command = {self().string(), "bench", "collectives"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (parsed.nprocs.size() == 1) return start_ranks(parsed, parsed.nprocs[0], command);
  std::vector<Row> rows;
  for (const int64_t nproc : parsed.nprocs) {
    const UniqueFd memory(::memfd_create("lockstep-bench", MFD_CLOEXEC));
    if (!memory) throw system_error("memfd_create for the rows of the bench", errno);
    const std::string path =
        "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(memory.get());
    std::vector<std::string> one = command;
    one.insert(one.end(), {"--nproc", std::to_string(nproc), "--rows-to", path});
    if (const int code = start_ranks(parsed, nproc, one); code != 0) return code;
    std::ifstream file(path);
    for (Row& row : Row::parse(file)) rows.push_back(std::move(row));
  }
  report_rows(parsed, rows);
  return 0;
}

}  // namespace

BenchArguments parse_bench_arguments(const Arguments& arguments) {
  CLI::App app(
      "Measures collectives: every backend in the same ranks, in alternating rounds, with buffers "
      "that are rewritten before each operation.",
      "lockstep bench collectives");
  BenchArguments result;
  std::string ops = "all_reduce", backends = "shm,gloo", sizes = "4,1K,64K,1M,25M,100M",
              dtypes = "float32", nprocs = "2";
  app.add_option("--ops", ops,
                 "all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, reduce, gather, "
                 "scatter, barrier, send (half a round trip) [all_reduce]")
      ->type_name("NAME,...");
  app.add_option(
         "--backends", backends,
         "shm, gloo, mpi, mpi-raw (MPI's blocking functions, without Lockstep), copies (of as "
         "many bytes as an operation must move: its limit) ... [shm,gloo]; times are compared "
         "with the first one's")
      ->type_name("NAME,...");
  app.add_option("--sizes", sizes, "bytes, of all parts together [4,1K,64K,1M,25M,100M]")
      ->type_name("SIZE,...");
  app.add_option("--dtypes", dtypes, "of the elements [float32]")->type_name("NAME,...");
  app.add_option("--nproc", nprocs, "ranks on this host, or several numbers of them: 2,4 [2]")
      ->take_last()
      ->type_name("N,...");
  app.add_flag("--symmetric", result.measured.symmetric, "backend shm also with symmetric tensors");
  app.add_option("--rounds", result.measured.rounds, "how often the backends take turns [9]");
  app.add_option("--block-ms", result.measured.block_ms, "how long a turn is, about [40]");
  app.add_option("--json", result.json, "write the rows to this file")->type_name("FILE");
  app.add_option("--fit", result.fit, "write alpha and beta of each operation to this file")
      ->type_name("FILE");
  app.add_option("--svg", result.svg, "draw bandwidth against size to this file")
      ->type_name("FILE");
  app.add_option("--rows-to", result.rows_to)->group("");
  cli::add_example(app,
                   {"lockstep bench collectives --ops all_reduce --backends shm,gloo --nproc 2"});
  parse(app, arguments);
  result.measured.ops = parse_ops(ops);
  result.measured.backends = parse_names("--backends", backends);
  for (const std::string& backend : result.measured.backends) {
    if (backend != kRawMpi && backend != kCopies) check_backend_name(backend);
  }
  result.measured.sizes = parse_byte_sizes(sizes);
  result.measured.dtypes = parse_dtypes(dtypes);
  result.nprocs = parse_rank_counts("--nproc", nprocs);
  if (result.measured.rounds < 1)
    throw InvalidArgument("--rounds is " + std::to_string(result.measured.rounds) +
                          "; give 1 or more");
  if (!(result.measured.block_ms > 0)) throw InvalidArgument("--block-ms must be above 0");
  if (result.measured.symmetric &&
      std::find(result.measured.backends.begin(), result.measured.backends.end(), "shm") ==
          result.measured.backends.end())
    throw InvalidArgument("--symmetric is for backend shm, which --backends does not have");
  return result;
}

int bench_collectives(const Arguments& arguments) {
  return run_guarded("bench collectives", [&] {
    const BenchArguments parsed = parse_bench_arguments(arguments);
    const auto job = launch::read_job_environment(process_env());
    if (job.launcher != launch::Launcher::kNone) return run_rank(parsed);
    check_result_files({parsed.json, parsed.fit, parsed.svg});
    return start_all(parsed, arguments);
  });
}

}  // namespace lockstep::inline v0::engine
