// The parts "operations", "shared-nccl" and "memcheck".
#include <c10/core/DeviceGuard.h>

#include <thread>

#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/comm/engines/staged/staged_backend.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/gpu_check/commands.h"
#include "lockstep/gpu_check/rank_jobs.h"
#include "lockstep/gpu_check/ranks.h"
#include "lockstep/gpu_check/runner.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::inline v0::gpu_check {
namespace {

// Every dtype in short, and where there is time two of them in longer than a piece of staged: what is
// judged by takes a host some time.
testing::SuiteReport run_suites(Communicator& comm, bool small, c10::Device device) {
  testing::SuiteOptions options;
  options.device = device;
  options.sizes = {0, 1009};
  options.long_bytes = 0;
  options.every_root = false;
  if (small) options.dtypes = {at::kFloat, at::kBFloat16, at::kLong};
  testing::SuiteReport report = testing::run_operation_suite(comm, options);
  if (small) return report;
  options.dtypes = {at::kFloat, at::kBFloat16};
  options.sizes = {};
  options.long_bytes = 5 << 20;
  testing::SuiteReport longer = testing::run_operation_suite(comm, options);
  report.checked += longer.checked;
  report.failures.insert(report.failures.end(), longer.failures.begin(), longer.failures.end());
  return report;
}

void add_report(const Rows& rows, const std::string& check, const testing::SuiteReport& report,
                double seconds) {
  if (!report.failures.empty()) {
    rows.failed(check, std::to_string(report.failures.size()) + " failures in " +
                           std::to_string(report.checked) +
                           " results, the first: " + report.failures.front());
    return;
  }
  rows.ok(check,
          std::to_string(report.checked) + " results, each bit as it should be, in " +
              three_digits(seconds) + " s",
          {{"results", report.checked}, {"seconds", seconds}});
}

void run_and_report(Communicator& comm, bool small, const Rows& rows) {
  const auto start = std::chrono::steady_clock::now();
  const testing::SuiteReport report = run_suites(comm, small, comm.device());
  add_report(rows, "operations", report, seconds_since(start));
}

// Ranks as threads of this process over staged, by turns on the devices.
void as_threads(const Options& options, const Rows& rows) {
  const std::string check =
      "staged, " + std::to_string(options.ranks) + " ranks that are threads: operations";
  const int devices = visible_device_count();
  auto engines = make_local_backends(options.ranks);
  Mutex mutex;
  testing::SuiteReport whole;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      testing::SuiteReport report;
      try {
        const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank % devices));
        const c10::DeviceGuard guard(device);
        Communicator comm(make_staged_backend(std::move(engines[static_cast<size_t>(rank)]), device,
                                              rank, options.ranks),
                          Topology{rank, options.ranks, rank, options.ranks, 0},
                          {.timeout = std::chrono::seconds(15)});
        try {
          report = run_suites(comm, options.small, device);
        } catch (const std::exception& error) {
          comm.abort(error.what());
          throw;
        }
      } catch (const std::exception& error) {
        report.failures.push_back("rank " + std::to_string(rank) + ": " + error.what());
      }
      const MutexLock lock(mutex);
      whole.checked += report.checked;
      whole.failures.insert(whole.failures.end(), report.failures.begin(), report.failures.end());
    });
  }
  for (std::thread& thread : threads) thread.join();
  add_report(rows, check, whole, seconds_since(start));
}

}  // namespace

void operations(Communicator& comm, const Options& options, const Rows& rows) {
  run_and_report(comm, options.small, rows);
}

void small_operations(Communicator& comm, const Options&, const Rows& rows) {
  run_and_report(comm, true, rows);
}

void look_at_operations(const Options& options, const Rows& rows) {
  rows.guard("staged, threads", [&] { as_threads(options, rows); });
  for (const JobSpec& spec : specs(options, "operations")) on_ranks(options, rows, spec);
  JobSpec twice;
  twice.job = "operations";
  twice.engine = "peer";
  twice.size = 2 * options.ranks;
  on_ranks(options, rows, twice);
}

void look_at_shared_nccl(const Options& options, const Rows& rows) {
  if (options.nccl.empty()) {
    rows.skipped("nccl, ranks that share a device",
                 "no file of an NCCL that takes them was given (--nccl)");
    return;
  }
  JobSpec spec;
  spec.engine = "nccl";
  spec.size = options.ranks;
  spec.timeout = std::chrono::seconds(20);
  spec.deadline = std::chrono::seconds(40);
  // Kernels that wait for each other share the device: few blocks leave room for the others'.
  spec.variables = {{"LOCKSTEP_NCCL", options.nccl},
                    {"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
                    {"NCCL_MAX_CTAS", "2"},
                    {"CUDA_VISIBLE_DEVICES", "0"}};
  spec.job = "small-operations";
  on_ranks(options, rows, spec);
}

void look_at_small_operations(const Options& options, const Rows& rows) {
  for (const JobSpec& spec : specs(options, "small-operations")) {
    if (spec.engine != "nccl") on_ranks(options, rows, spec);
  }
}

void look_at_memory_accesses(const Options& options, const Rows& rows) {
  const std::string check = "operations of peer and staged under compute-sanitizer";
  std::string program = options.sanitizer;
  if (program.empty()) {
    try {
      program = find_program("compute-sanitizer");
    } catch (const LaunchError&) {
      rows.skipped(check, "compute-sanitizer is not on PATH");
      return;
    }
  }
  std::vector<std::string> command = options.arguments({"--part", "small-operations"});
  command.insert(command.begin(), {program, "--tool", "memcheck", "--target-processes", "all",
                                   "--error-exitcode", "9", own_program()});
  const CommandOutput ended = run_command(command, 28);
  const Output output = take_rows(ended.text);
  for (const Row& row : output.rows)
    rows.add(row.check + ", under compute-sanitizer", row.outcome, row.text);
  const bool clean = ended.text.find("ERROR SUMMARY: 0 errors") != std::string::npos;
  if (ended.ok() && clean)
    rows.ok(check, "0 errors");
  else
    rows.failed(check, ended.wrong + ": " + last_words(output.rest, 3));
}

}  // namespace lockstep::inline v0::gpu_check
