// The part "faults".
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <signal.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/gpu_check/rank_jobs.h"
#include "lockstep/gpu_check/ranks.h"
#include "lockstep/testing/fault_suite.h"

namespace lockstep::inline v0::gpu_check {
namespace {

// What a rank that stops is waited for; others are named by themselves.
constexpr auto kTimeout = std::chrono::seconds(4);
constexpr auto kPatience = std::chrono::seconds(20);

at::Tensor vector_of(Communicator& comm, int64_t count) {
  return at::zeros({count}, at::TensorOptions(comm.device()).dtype(at::kFloat));
}

void reduce(Communicator& comm) {
  comm.all_reduce(vector_of(comm, 100'000));
}

void reduce_until_an_error(Communicator& comm) {
  const Deadline deadline = Deadline::after(kPatience);
  while (!deadline.expired()) reduce(comm);
}

// This rank's part of a fault; then whether its device computes as before.
void run(Communicator& comm, const Rows& rows, const testing::Fault& fault) {
  reduce(comm);
  const auto start = std::chrono::steady_clock::now();
  const std::string wrong = testing::run_fault(comm, fault, {});
  const double seconds = seconds_since(start);
  if (!wrong.empty()) {
    rows.failed(fault.name, last_words(wrong, 4));
    return;
  }
  const at::Tensor ones = at::ones({1000}, at::TensorOptions(comm.device()));
  if (ones.sum().item<double>() != 1000) {
    rows.failed(fault.name, "the device computes wrongly afterwards");
    return;
  }
  rows.ok(fault.name,
          "named on every rank, within " + three_digits(seconds) + " s; the device goes on",
          {{"seconds", seconds}});
}

}  // namespace

void rank_is_killed(Communicator& comm, const Options&, const Rows& rows) {
  testing::Fault fault;
  fault.name = "a rank is killed";
  fault.error = testing::FaultError::kPeerLost;
  fault.fault = [](Communicator& own) {
    const Work work = own.iall_reduce(vector_of(own, 100'000));
    ::kill(::getpid(), SIGKILL);
  };
  fault.others = reduce_until_an_error;
  run(comm, rows, fault);
}

void rank_stops(Communicator& comm, const Options&, const Rows& rows) {
  testing::Fault fault;
  fault.name = "a rank stops (time-out 4 s)";
  fault.error = testing::FaultError::kTimeout;
  fault.fault = [](Communicator&) { ::raise(SIGSTOP); };
  fault.others = reduce_until_an_error;
  fault.at_deadline = true;
  run(comm, rows, fault);
}

void rank_calls_another(Communicator& comm, const Options&, const Rows& rows) {
  testing::Fault fault;
  fault.name = "a rank calls with another shape";
  fault.error = testing::FaultError::kMismatch;
  fault.fault = [](Communicator& own) { own.all_reduce(vector_of(own, 101)); };
  fault.others = [](Communicator& own) { own.all_reduce(vector_of(own, 100)); };
  fault.faulty_sees_it = true;
  fault.words = {"float32 x 100", "float32 x 101"};
  run(comm, rows, fault);
}

void look_at_faults(const Options& options, const Rows& rows) {
  for (JobSpec spec : specs(options, "")) {
    if (spec.engine == "nccl" && spec.size < testing::kFaultSize) {
      rows.skipped("nccl", "it takes a device for each of " + std::to_string(testing::kFaultSize) +
                               " ranks: there are too few, or --ranks is less");
      continue;
    }
    spec.size = testing::kFaultSize;
    const auto look = [&](const char* job, int end, std::chrono::nanoseconds timeout) {
      spec.job = job;
      spec.timeout = timeout;
      spec.ends = {{testing::kFaultyRank, end}};
      return on_ranks(options, rows, spec);
    };
    if (!look("killed", SIGKILL, kPatience)) continue;
    look("stopped", SIGSTOP, kTimeout);
    look("mismatch", 0, kPatience);
  }
}

}  // namespace lockstep::inline v0::gpu_check
