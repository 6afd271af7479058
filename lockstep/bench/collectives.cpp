#include "lockstep/bench/collectives.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>

#include "lockstep/bench/contender.h"
#include "lockstep/bench/experiment.h"
#include "lockstep/bench/load.h"
#include "lockstep/bench/spin_barrier.h"
#include "lockstep/comm/engines/mpi/mpi_process.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/log.h"

namespace lockstep::inline v0::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBatch = 100;  // operations of a sample up to kBatchedBytes
constexpr int64_t kLeast = 3;    // samples of a block, at least
constexpr int64_t kMost = 1000;  // samples of a block, at most
constexpr int kWarmUp = 3;       // operations before the first block

bool over_mpi(const std::string& backend) {
  return backend == "mpi" || backend == "hierarchical:mpi";
}

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Gives each rank a processor of its own where there are enough, because a rank that moves to
// another loses its cache.
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
  Bench(const CollectivesOptions& options, const Communicator& control)
      : options_(options), control_(control), barrier_(control_) {}

  void add(std::unique_ptr<Contender> contender) { contenders_.push_back(std::move(contender)); }

  std::vector<Row> run() {
    const std::vector<BenchCase> cases = list_cases();
    const bool shows = control_.rank() == 0;
    TurnBar bar(static_cast<int64_t>(cases.size() * contenders_.size()) * options_.rounds);
    TurnWatcher silent;
    std::vector<Row> rows;
    for (const BenchCase& c : cases) {
      for (Row& row : run_case(c, shows ? bar : silent)) rows.push_back(std::move(row));
    }
    if (shows) bar.finish("measured " + std::to_string(rows.size()) + " rows");
    compare_to_first(rows);
    return rows;
  }

 private:
  std::vector<BenchCase> list_cases() const {
    std::vector<BenchCase> cases;
    for (const Op op : options_.ops) {
      if (op == Op::kBarrier) {
        cases.push_back({op, at::kByte, 0, control_.size()});
        continue;
      }
      for (const at::ScalarType dtype : options_.dtypes) {
        for (const int64_t size : options_.sizes)
          cases.push_back({op, dtype, size, control_.size()});
      }
    }
    return cases;
  }

  std::vector<Row> run_case(const BenchCase& c, TurnWatcher& watcher) {
    const LoadMeter load;
    std::deque<Measured> series;  // jobs refer to them
    std::vector<Job> jobs;
    for (const auto& contender : contenders_) {
      const std::string obstacle = contender->obstacle(c);
      if (!obstacle.empty()) {
        if (control_.rank() == 0) log_warning("left out: " + obstacle);
        continue;
      }
      Measured& s = series.emplace_back(Measured{.contender = contender.get()});
      jobs.push_back({std::string(to_string(c.op)) + " " + byte_text(c.whole_bytes()) + " " +
                          contender->name(),
                      [&] {
                        take_turn(s, c);
                        return std::string();
                      }});
    }
    batched_ = c.whole_bytes() <= kBatchedBytes;
    run_experiment(jobs, options_.rounds, watcher);
    const double others = load.others(control_);
    std::vector<Row> rows;
    for (Measured& s : series) {
      rows.push_back(make_row(c, s.contender->name(), s.contender->symmetric(),
                              slowest(std::move(s.samples), c), batched_ ? kBatch : 1));
      rows.back()["others_cpus"] = others;
      rows.back()["library"] = s.contender->library();
    }
    return rows;
  }

  // Buffers live for a turn only, so that the next backend finds memory and caches as this one did.
  void take_turn(Measured& s, const BenchCase& c) {
    s.contender->prepare(c);
    warm_up(s);
    take_block(s);
    s.contender->release();
  }

  // In the first turn it also decides how many samples a block has, the same on every rank.
  void warm_up(Measured& s) {
    const bool first = s.samples.empty();
    double last = 0;
    for (int i = 0; i < kWarmUp; ++i) {
      s.contender->touch(i);
      barrier_.pass();
      const auto start = Clock::now();
      s.contender->run();
      last = microseconds_since(start);
      if (first) s.contender->verify(i);
      barrier_.pass();
    }
    if (!first) return;
    const at::Tensor longest = at::empty({1}, at::kDouble);
    longest.fill_(std::max(last, 0.1) * static_cast<double>(batched_ ? kBatch : 1));
    control_.all_reduce(longest, ReduceOp::kMax);
    const double samples = options_.block_ms * 1000 / longest.item<double>();
    s.block = std::clamp(static_cast<int64_t>(samples), kLeast, kMost);
  }

  void take_block(Measured& s) {
    Contender& contender = *s.contender;
    for (int64_t i = 0; i < s.block; ++i) {
      if (!batched_) {
        contender.touch(i);
        barrier_.pass();
        const auto start = Clock::now();
        contender.run();
        s.samples.push_back(microseconds_since(start));
        continue;
      }
      barrier_.pass();
      auto start = Clock::now();
      for (int64_t k = 0; k < kBatch; ++k) contender.touch(k);
      const double touching = microseconds_since(start);
      barrier_.pass();
      start = Clock::now();
      for (int64_t k = 0; k < kBatch; ++k) {
        contender.touch(k);
        contender.run();
      }
      s.samples.push_back(std::max(0.0, microseconds_since(start) - touching) / kBatch);
    }
    barrier_.pass();
  }

  // The time of an operation is that of the rank where it took longest.
  std::vector<double> slowest(std::vector<double> samples, const BenchCase& c) {
    const at::Tensor longest = at::empty({static_cast<int64_t>(samples.size())}, at::kDouble);
    std::copy(samples.begin(), samples.end(), longest.mutable_data_ptr<double>());
    control_.all_reduce(longest, ReduceOp::kMax);
    const double scale = c.op == Op::kSend ? 0.5 : 1;  // a round trip is two messages
    std::transform(longest.const_data_ptr<double>(),
                   longest.const_data_ptr<double>() + samples.size(), samples.begin(),
                   [scale](double us) { return us * scale; });
    return samples;
  }

  const CollectivesOptions& options_;
  Communicator control_;
  SpinBarrier barrier_;
  std::vector<std::unique_ptr<Contender>> contenders_;
  bool batched_ = false;
};

}  // namespace

bool needs_mpirun(const std::vector<std::string>& backends) {
  return std::any_of(backends.begin(), backends.end(),
                     [](const std::string& name) { return over_mpi(name) || name == kRawMpi; });
}

void measure_collectives(const CollectivesOptions& options,
                         const std::function<void(const std::vector<Row>&)>& report) {
  at::set_num_threads(1);
  // The first communicator says where this rank is, before engines start threads that inherit its
  // processor.
  Communicator control = init({});
  pin_rank(control);
  Bench bench(options, control);
  for (const std::string& name : options.backends) {
    if (name == kRawMpi) {
      bench.add(make_raw_mpi_contender(control.rank(), control.size()));
      continue;
    }
    if (name == kCopies) {
      bench.add(make_copy_contender(control));
      continue;
    }
    const Communicator comm = init({.backend = name});
    bench.add(make_comm_contender(comm, false, over_mpi(name) ? mpi::library_name() : ""));
    if (options.symmetric && name == "shm") bench.add(make_comm_contender(comm, true));
  }
  const std::vector<Row> rows = bench.run();
  if (control.rank() == 0) report(rows);
  control.barrier();
}

}  // namespace lockstep::inline v0::bench
