#include "lockstep/cli/engine/bench_collectives.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/cli/engine/bench_contender.h"
#include "lockstep/cli/engine/bench_gate.h"
#include "lockstep/cli/engine/bench_load.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/mpi/mpi_process.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/output.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/report/progress_bar.h"
#include "lockstep/report/table.h"

namespace lockstep::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kRawMpi = "mpi-raw";
constexpr int64_t kBatch = 100;      // operations of a sample up to kBatchedBytes
constexpr int64_t kLeast = 3;        // samples of a block
constexpr int64_t kMost = 1000;      // likewise
constexpr int kWarmUp = 3;           // operations before the first block
constexpr double kDisturbed = 0.05;  // processors that others may use before it is said

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

bool needs_mpirun(const BenchArguments& arguments) {
  return std::any_of(arguments.backends.begin(), arguments.backends.end(),
                     [](const std::string& name) {
                       return name == "mpi" || name == "hierarchical:mpi" || name == kRawMpi;
                     });
}

// ---- a rank ----

// One processor a rank where there are enough: a rank that moves takes its cache with it.
void pin_rank(const Communicator& comm) {
  const std::vector<int> cpus = allowed_cpus();
  if (cpus.size() < static_cast<size_t>(comm.local_size())) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus[static_cast<size_t>(comm.local_rank())], &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

// The samples of one backend on one case, and how they are taken.
struct Measured {
  Contender* contender = nullptr;
  int64_t block = kLeast;  // samples a block
  std::vector<double> samples = {};
};

class Bench {
 public:
  Bench(const BenchArguments& arguments, const Communicator& referee)
      : arguments_(arguments), referee_(referee), gate_(referee_) {
    if (referee_.rank() == 0)
      bar_.emplace(ProgressBarOptions{.terminal = find_terminal(STDERR_FILENO, process_env())});
  }

  void add(std::unique_ptr<Contender> contender) { contenders_.push_back(std::move(contender)); }

  std::vector<BenchRow> run() {
    const std::vector<BenchCase> cases = list_cases();
    total_ = static_cast<int64_t>(cases.size() * contenders_.size()) * arguments_.rounds;
    std::vector<BenchRow> rows;
    for (const BenchCase& c : cases) {
      for (BenchRow& row : run_case(c)) rows.push_back(std::move(row));
    }
    if (bar_) bar_->finish("measured " + std::to_string(rows.size()) + " rows");
    compare_to_first(rows);
    return rows;
  }

 private:
  std::vector<BenchCase> list_cases() const {
    std::vector<BenchCase> cases;
    for (const Op op : arguments_.ops) {
      if (op == Op::kBarrier) {
        cases.push_back({op, at::kByte, 0, referee_.size()});
        continue;
      }
      for (const at::ScalarType dtype : arguments_.dtypes) {
        for (const int64_t size : arguments_.sizes)
          cases.push_back({op, dtype, size, referee_.size()});
      }
    }
    return cases;
  }

  std::vector<BenchRow> run_case(const BenchCase& c) {
    const LoadMeter load;
    std::vector<Measured> series;
    for (const auto& contender : contenders_) {
      const std::string obstacle = contender->obstacle(c);
      if (obstacle.empty()) {
        series.push_back({.contender = contender.get()});
      } else if (referee_.rank() == 0) {
        log_warning("left out: " + obstacle);
      }
    }
    batched_ = c.whole_bytes() <= kBatchedBytes;
    for (int round = 0; round < arguments_.rounds; ++round) {
      for (Measured& s : series) {
        // Buffers live for a block only: the next backend finds memory and caches as this one did.
        s.contender->prepare(c);
        warm_up(s, round);
        take_block(s);
        s.contender->release();
        show(c, s, round);
      }
    }
    const double others = load.others(referee_);
    std::vector<BenchRow> rows;
    for (Measured& s : series) {
      rows.push_back(make_row(c, s.contender->name(), s.contender->symmetric(),
                              slowest(std::move(s.samples), c), batched_ ? kBatch : 1));
      rows.back().others_cpus = others;
      rows.back().library = s.contender->library();
    }
    return rows;
  }

  // Also decides, in the first round, how many samples a block has: as many on every rank.
  void warm_up(Measured& s, int round) {
    double last = 0;
    for (int i = 0; i < kWarmUp; ++i) {
      s.contender->touch(i);
      gate_.pass();
      const auto start = Clock::now();
      s.contender->run();
      last = microseconds_since(start);
      if (round == 0) s.contender->verify(i);
      gate_.pass();
    }
    if (round > 0) return;
    const at::Tensor longest = at::empty({1}, at::kDouble);
    longest.fill_(std::max(last, 0.1) * static_cast<double>(batched_ ? kBatch : 1));
    referee_.all_reduce(longest, ReduceOp::kMax);
    const double samples = arguments_.block_ms * 1000 / longest.item<double>();
    s.block = std::clamp(static_cast<int64_t>(samples), kLeast, kMost);
  }

  void take_block(Measured& s) {
    Contender& contender = *s.contender;
    for (int64_t i = 0; i < s.block; ++i) {
      if (!batched_) {
        contender.touch(i);
        gate_.pass();
        const auto start = Clock::now();
        contender.run();
        s.samples.push_back(microseconds_since(start));
        continue;
      }
      gate_.pass();
      auto start = Clock::now();
      for (int64_t k = 0; k < kBatch; ++k) contender.touch(k);
      const double touching = microseconds_since(start);
      gate_.pass();
      start = Clock::now();
      for (int64_t k = 0; k < kBatch; ++k) {
        contender.touch(k);
        contender.run();
      }
      s.samples.push_back(std::max(0.0, microseconds_since(start) - touching) / kBatch);
    }
    gate_.pass();
  }

  // Each operation took as long as on the rank where it took longest.
  std::vector<double> slowest(std::vector<double> samples, const BenchCase& c) {
    const at::Tensor longest = at::empty({static_cast<int64_t>(samples.size())}, at::kDouble);
    std::copy(samples.begin(), samples.end(), longest.mutable_data_ptr<double>());
    referee_.all_reduce(longest, ReduceOp::kMax);
    const double scale = c.op == Op::kSend ? 0.5 : 1;  // a round trip is two messages
    std::transform(longest.const_data_ptr<double>(),
                   longest.const_data_ptr<double>() + samples.size(), samples.begin(),
                   [scale](double us) { return us * scale; });
    return samples;
  }

  void show(const BenchCase& c, const Measured& s, int round) {
    ++done_;
    if (!bar_) return;
    bar_->update({.label = std::string(to_string(c.op)) + " " + byte_text(c.whole_bytes()) + " " +
                           s.contender->name() + " round " + std::to_string(round + 1) + "/" +
                           std::to_string(arguments_.rounds),
                  .done = done_,
                  .total = total_});
  }

  const BenchArguments& arguments_;
  Communicator referee_;
  Gate gate_;
  std::vector<std::unique_ptr<Contender>> contenders_;
  std::optional<ProgressBar> bar_;
  int64_t done_ = 0;
  int64_t total_ = 0;
  bool batched_ = false;
};

void report_rows(const BenchArguments& arguments, const std::vector<BenchRow>& rows) {
  const std::vector<BenchFit> fits = fit_rows(rows);
  std::cout << bench_table(rows) << library_lines(rows);
  if (!fits.empty())
    std::cout << "\nTime of an operation = alpha + beta x size:\n" << fit_table(fits);
  const auto most = std::max_element(
      rows.begin(), rows.end(),
      [](const BenchRow& a, const BenchRow& b) { return a.others_cpus < b.others_cpus; });
  if (most != rows.end() && most->others_cpus > kDisturbed) {
    std::cout << "\nOther processes used up to " << fixed(most->others_cpus, 2)
              << " processors meanwhile: measure again when the machine is quiet.\n";
  }
  std::cout << std::flush;
  write_json(arguments.json, bench_json(rows));
  write_json(arguments.fit, fit_json(fits));
  if (!arguments.svg.empty()) write_file_aside(arguments.svg, bench_svg(rows));
}

int run_bench_rank(const BenchArguments& arguments) {
  at::set_num_threads(1);
  // The first communicator says where this rank is, before engines start threads that inherit its
  // processor.
  Communicator referee = init({});
  pin_rank(referee);
  Bench bench(arguments, referee);
  for (const std::string& name : arguments.backends) {
    if (name == kRawMpi) {
      bench.add(make_raw_mpi_contender(referee.rank(), referee.size()));
      continue;
    }
    const Communicator comm = init({.backend = name});
    const bool over_mpi = name == "mpi" || name == "hierarchical:mpi";
    bench.add(make_comm_contender(comm, false, over_mpi ? mpi::library_name() : ""));
    if (arguments.symmetric && name == "shm") bench.add(make_comm_contender(comm, true));
  }
  const std::vector<BenchRow> rows = bench.run();
  if (referee.rank() == 0) {
    if (arguments.rows_to.empty())
      report_rows(arguments, rows);
    else
      std::ofstream(arguments.rows_to) << bench_json(rows);
  }
  referee.barrier();
  return 0;
}

// ---- the parent ----

int run_bench_ranks(const BenchArguments& parsed, int nproc,
                    const std::vector<std::string>& command) {
  if (!needs_mpirun(parsed)) {
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
  Subprocess mpirun(launch::mpirun_process(launch::find_mpirun(process_env()),
                                           {.nproc = nproc, .command = command, .env = env}));
  const ExitStatus status = mpirun.wait(Deadline::after(Deadline::Duration::max()));
  return status.signal != 0 ? 128 + status.signal : status.exit_code;
}

// Each number of ranks in turn; the rows come back through memory without a name, so that nothing
// is left behind.
int start_bench_ranks(const BenchArguments& parsed, const Arguments& arguments) {
  std::vector<std::string> command = {self().string(), "bench", "collectives"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (parsed.nprocs.size() == 1) return run_bench_ranks(parsed, parsed.nprocs[0], command);
  std::vector<BenchRow> rows;
  for (const int nproc : parsed.nprocs) {
    const UniqueFd memory(::memfd_create("lockstep-bench", MFD_CLOEXEC));
    if (!memory) throw system_error("memfd_create for the rows of the bench", errno);
    const std::string path =
        "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(memory.get());
    std::vector<std::string> one = command;
    one.insert(one.end(), {"--nproc", std::to_string(nproc), "--rows-to", path});
    if (const int code = run_bench_ranks(parsed, nproc, one); code != 0) return code;
    std::ifstream file(path);
    for (BenchRow& row : read_bench_json(nlohmann::json::parse(file)))
      rows.push_back(std::move(row));
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
                 "scatter, barrier, send (half a round trip) [all_reduce]");
  app.add_option("--backends", backends,
                 "shm, gloo, mpi, mpi-raw (MPI's blocking functions, without Lockstep) ... "
                 "[shm,gloo]; times are compared with the first one's");
  app.add_option("--sizes", sizes, "bytes, of all parts together [4,1K,64K,1M,25M,100M]");
  app.add_option("--dtypes", dtypes, "[float32]");
  app.add_option("--nproc", nprocs, "ranks on this host, or several numbers of them: 2,4 [2]")
      ->take_last();
  app.add_flag("--symmetric", result.symmetric, "backend shm also with symmetric tensors");
  app.add_option("--rounds", result.rounds, "how often the backends take turns [9]");
  app.add_option("--block-ms", result.block_ms, "how long a turn is, about [40]");
  app.add_option("--json", result.json, "write the rows to this file");
  app.add_option("--fit", result.fit, "write alpha and beta of each operation to this file");
  app.add_option("--svg", result.svg, "draw bandwidth against size to this file");
  app.add_option("--rows-to", result.rows_to)->group("");
  parse(app, arguments);
  result.ops = parse_ops(ops);
  result.backends = parse_names("--backends", backends);
  for (const std::string& backend : result.backends) {
    if (backend != kRawMpi) check_backend_name(backend);
  }
  result.sizes = parse_byte_sizes(sizes);
  result.dtypes = parse_dtypes(dtypes);
  result.nprocs = parse_nprocs(nprocs);
  if (result.rounds < 1)
    throw InvalidArgument("--rounds is " + std::to_string(result.rounds) + "; give 1 or more");
  if (!(result.block_ms > 0)) throw InvalidArgument("--block-ms must be above 0");
  if (result.symmetric &&
      std::find(result.backends.begin(), result.backends.end(), "shm") == result.backends.end())
    throw InvalidArgument("--symmetric is for backend shm, which --backends does not have");
  return result;
}

int bench_collectives(const Arguments& arguments) {
  return run_guarded("bench collectives", [&] {
    const BenchArguments parsed = parse_bench_arguments(arguments);
    const auto job = launch::read_job_environment(process_env());
    if (job.launcher != launch::Launcher::kNone) return run_bench_rank(parsed);
    for (const std::string& path : {parsed.json, parsed.fit, parsed.svg}) check_output_file(path);
    return start_bench_ranks(parsed, arguments);
  });
}

}  // namespace lockstep::engine
