#include "lockstep/bench/machine.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/InferenceMode.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/bench/collectives.h"
#include "lockstep/bench/figures.h"
#include "lockstep/bench/load.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/memory_limit.h"
#include "lockstep/core/memory_use.h"
#include "lockstep/core/quantile.h"
#include "lockstep/report/progress_bar.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::bench {
namespace {

using Clock = std::chrono::steady_clock;

double elapsed_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Meter {
 public:
  Meter(const MachineOptions& options, Communicator comm)
      : options_(options),
        comm_(std::move(comm)),
        bar_({.terminal = find_terminal(STDERR_FILENO, process_env())}) {}

  void begins(const std::string& what, int64_t all) {
    all_ = all;
    shown(what);
  }

  // The time of one call, on all ranks at once; the mean over the ranks of each one's median.
  double time_of(const std::string& what, const std::function<void()>& call) {
    shown(what);
    call();  // what is allocated or looked up once
    const auto once = Clock::now();
    call();
    // The same number of calls on every rank.
    const double one = mean(elapsed_since(once));
    const auto calls = static_cast<int64_t>(
        std::clamp(options_.sample_s / kSamples / std::max(one, 1e-9), 1.0, 1e6));
    std::vector<double> samples;
    for (int i = 0; i < kSamples; ++i) {
      comm_.barrier();
      const auto start = Clock::now();
      for (int64_t k = 0; k < calls; ++k) call();
      samples.push_back(elapsed_since(start) / static_cast<double>(calls));
    }
    ++done_;
    return mean(median(samples));
  }

  void finish() {
    if (comm_.rank() == 0) bar_.finish("measured products, copies and operators");
  }

 private:
  static constexpr int kSamples = 5;

  double mean(double value) {
    const at::Tensor sum = at::empty({1}, at::kDouble);
    sum.fill_(value);
    comm_.all_reduce(sum);
    return sum.item<double>() / comm_.size();
  }

  void shown(const std::string& what) {
    if (comm_.rank() == 0) bar_.update({.label = what, .done = done_, .total = all_});
  }

  const MachineOptions& options_;
  Communicator comm_;
  ProgressBar bar_;
  int64_t done_ = 0, all_ = 0;
};

void measure_products(const MachineOptions& options, Meter& meter, plan::Measurements* found) {
  for (const auto& [precision, dtype] : {std::pair{plan::Precision::kFloat32, at::kFloat},
                                         std::pair{plan::Precision::kBFloat16, at::kBFloat16}}) {
    for (const int64_t size : options.sizes) {
      const at::Tensor left = at::rand({size, size}).to(dtype);
      const at::Tensor right = at::rand({size, size}).to(dtype);
      const double seconds = meter.time_of(
          std::string("products ") + plan::name_of(precision) + " " + std::to_string(size),
          [&] { at::mm(left, right); });
      found->products.push_back({.precision = precision, .size = size, .seconds = seconds});
      // Where it is emulated, the largest would take minutes: the next one has eight times the work.
      constexpr double kLongest = 1.5;
      if (8 * seconds > kLongest) break;
    }
  }
}

void measure_memory(Meter& meter, plan::Measurements* found) {
  constexpr int64_t kElements = 16 << 20;  // 64 MiB, more than caches hold
  const at::Tensor from = at::ones({kElements}), to = at::empty({kElements});
  const double seconds = meter.time_of("copies", [&] { to.copy_(from); });
  found->copied = 2.0 * 4 * kElements / seconds;
  const at::Tensor one = at::ones({1});
  found->launch = meter.time_of("an operator on one element", [&] { one.add_(1); });
}

void measure_attention(Meter& meter, plan::Measurements* found) {
  constexpr int64_t kHeads = 8, kTokens = 1024, kChannels = 64;
  const at::Tensor q = at::rand({1, kHeads, kTokens, kChannels});
  const at::Tensor k = at::rand({1, kHeads, kTokens, kChannels});
  const at::Tensor v = at::rand({1, kHeads, kTokens, kChannels});
  const double seconds = meter.time_of("attention", [&] {
    at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, /*is_causal=*/true);
  });
  // Two products, of whose scores a causal mask leaves half.
  found->attention_flops = 2.0 * kHeads * kTokens * kTokens * kChannels / seconds;
}

plan::Collective collective_of(const std::string& op) {
  if (op == "all_gather") return plan::Collective::kAllGather;
  if (op == "reduce_scatter") return plan::Collective::kReduceScatter;
  if (op == "all_to_all") return plan::Collective::kAllToAll;
  if (op == "send") return plan::Collective::kSend;
  return plan::Collective::kAllReduce;
}

}  // namespace

std::vector<plan::CollectiveSample> samples_of(const std::vector<Row>& rows,
                                               const std::string& backend) {
  std::vector<plan::CollectiveSample> samples;
  constexpr double kMicro = 1e-6, kMiB = 1024 * 1024;
  for (const Row& fit : fit_rows(rows)) {
    if (fit.at("backend").get<std::string>() != backend) continue;
    samples.push_back({.collective = collective_of(fit.at("op").get<std::string>()),
                       .ranks = fit.at("nproc").get<int>(),
                       .alpha = fit.at("alpha_us").get<double>() * kMicro,
                       .beta = fit.at("beta_us_per_MiB").get<double>() * kMicro / kMiB});
  }
  return samples;
}

MachineFigures measure_machine(const MachineOptions& options) {
  const c10::InferenceMode no_gradients;
  MachineFigures figures;
  plan::Measurements& found = figures.measured;
  found.name = options.name;
  {
    Communicator comm = init({});
    const LoadMeter load;
    found.ranks = comm.size();
    found.fixed_bytes = proportional_memory_bytes();
    found.memory = static_cast<double>(host_memory_bytes()) / comm.size();
    found.processors = host_cpu_count();
    Meter meter(options, comm);
    meter.begins("measuring", static_cast<int64_t>(2 * options.sizes.size()) + 3);
    measure_products(options, meter, &found);
    measure_memory(meter, &found);
    measure_attention(meter, &found);
    meter.finish();
    figures.others = load.others(comm);
  }
  const CollectivesOptions collectives{.ops = {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter},
                                       .backends = {options.inside, options.between},
                                       .sizes = options.bytes,
                                       .dtypes = {at::kFloat},
                                       .rounds = 3,
                                       .block_ms = 20};
  measure_collectives(collectives, [&](const std::vector<Row>& rows) {
    for (const Row& row : rows)
      figures.others = std::max(figures.others, row.at("others_cpus").get<double>());
    found.inside = samples_of(rows, options.inside);
    found.between = samples_of(rows, options.between);
  });
  found.inside_over = options.inside;
  found.between_over = options.between + ", of this host to itself";
  return figures;
}

}  // namespace lockstep::inline v0::bench
