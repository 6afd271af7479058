// Draws what passes through one device in DataParallel and in data parallelism by all-reduce, as
// docs/figures has it, from what the code counts in one step of SimpleCnn; prints the table of
// docs/data-parallel.md.
//   data_parallel_figures FOLDER
#include <ATen/ops/arange.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/core/aside_file.h"
#include "lockstep/model/simple_cnn.h"
#include "lockstep/parallel/data_parallel/data_parallel.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/report/line_chart.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0 {
namespace {

constexpr int64_t kBatch = 64;

void step(auto& model, int64_t rows) {
  at::nll_loss(model(at::zeros({rows, 1, 28, 28})), at::arange(rows).remainder(10)).backward();
}

DataParallelTraffic data_parallel(int replicas) {
  DataParallel model(SimpleCnn(), {.replicas = replicas}, [] { return SimpleCnn(); });
  step(model, kBatch);
  return model.traffic();
}

// What rank 0 sends in a ring all-reduce of the gradients; it receives as much.
uint64_t ring(int ranks) {
  uint64_t bytes = 0;
  testing::run_threads(ranks, [&](Communicator& comm) {
    SimpleCnn model;
    step(model, kBatch / ranks);
    const uint64_t before = comm.stats().of(Op::kSend).bytes;
    average_gradients(model, comm, {.algorithm = algorithms::AllReduce::kRing});
    if (comm.rank() == 0) bytes = comm.stats().of(Op::kSend).bytes - before;
  });
  return bytes;
}

double mebibytes(double bytes) {
  return bytes / (1 << 20);
}

void draw(const std::string& folder) {
  Series through{.name = "DataParallel, output device", .x = {}, .y = {}};
  Series all_reduced{.name = "DDP, each rank", .x = {}, .y = {}};
  Series formula{.name = "2 (N-1)/N of the gradients", .x = {}, .y = {}, .dashed = true};
  Series output{.name = "DataParallel, output device", .x = {}, .y = {}};
  // A colour of its own in both panels.
  Series other{.name = "DataParallel, another device", .x = {}, .y = {}, .colour = 3};
  double gradients = 0;
  for (const auto& parameter : SimpleCnn()->parameters())
    gradients += static_cast<double>(parameter.nbytes());
  std::printf(
      "| N | DataParallel: through the output device | DDP: sent by each rank | "
      "DataParallel: on the output device | on another device |\n|---|---|---|---|---|\n");
  for (const int n : {2, 3, 4, 6, 8}) {
    const DataParallelTraffic traffic = data_parallel(n);
    const auto sent = static_cast<double>(ring(n));
    const auto add = [n](Series& series, double bytes) {
      series.x.push_back(n);
      series.y.push_back(mebibytes(bytes));
    };
    add(through, static_cast<double>(traffic.total()));
    add(all_reduced, sent);
    add(formula, 2.0 * (n - 1) / n * gradients);
    add(output, static_cast<double>(traffic.output_device_bytes));
    add(other, static_cast<double>(traffic.other_device_bytes));
    std::printf("| %d | %.2f MiB | %.2f MiB | %.2f MiB | %.2f MiB |\n", n, through.y.back(),
                all_reduced.y.back(), output.y.back(), other.y.back());
  }
  const ChartPanel bytes{.title = "moved in a step",
                         .x_label = "devices",
                         .y_label = "MiB",
                         .series = {through, all_reduced, formula},
                         .x_integers = true};
  const ChartPanel memory{.title = "held, besides activations",
                          .x_label = "devices",
                          .y_label = "MiB",
                          .series = {output, other},
                          .x_integers = true};
  write_file_aside(folder + "/data_parallel_traffic.svg",
                   svg_line_chart({bytes, memory}, {.title = "SimpleCnn, global batch 64"}));
}

}  // namespace
}  // namespace lockstep::inline v0

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: data_parallel_figures FOLDER\n", stderr);
    return 2;
  }
  try {
    lockstep::draw(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "data_parallel_figures: %s\n", error.what());
    return 1;
  }
}
