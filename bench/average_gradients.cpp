// average_gradients() against the loop that MPI programs have: one blocking MPI_Allreduce for each
// parameter and a division. Both average the same gradients in the same processes, in turns:
//
//   mpirun -n 2 build/release/bin/bench/average_gradients --model resnet18,bert-base --json FILE
//
// Each turn rewrites the gradients first, as a backward does, and starts at a barrier. A second
// comparison includes a backward, which only writes gradients: with the loop after it, and under a
// GradientAverager, which averages meanwhile. Rank 0 prints for each model the medians and the
// ratio of the two, turn by turn: its median, smallest and largest.
#include <ATen/Parallel.h>
#include <mpi.h>
#include <torch/nn/module.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/errors.h"
#include "lockstep/model/bert.h"
#include "lockstep/model/resnet.h"
#include "lockstep/mpi.h"
#include "lockstep/parallel/ddp/gradient_averager.h"
#include "lockstep/replicas/average_gradients.h"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

std::vector<at::Tensor> parameters_of_model(const std::string& name) {
  std::vector<at::Tensor> parameters;
  if (name == "resnet18")
    parameters = ResNet()->parameters();
  else if (name == "bert-base")
    parameters = BertClassifier()->parameters();
  else
    throw InvalidArgument("--model " + name + ": give resnet18 or bert-base");
  std::vector<at::Tensor> trained;
  for (const at::Tensor& one : parameters)
    trained.push_back(one.detach().clone().set_requires_grad(true));
  return trained;
}

// What users write.
void by_mpi(const std::vector<at::Tensor>& parameters) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor gradient = parameter.grad();
    MPI_Allreduce(MPI_IN_PLACE, gradient.mutable_data_ptr(), static_cast<int>(gradient.numel()),
                  MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    gradient.div_(size);
  }
}

void rewrite(const std::vector<at::Tensor>& parameters, int rank, int turn) {
  for (const at::Tensor& parameter : parameters)
    at::Tensor(parameter).mutable_grad().fill_(static_cast<double>(turn % 7 + 4 * rank));
}

// Milliseconds until the slowest rank has finished.
double time_of(Communicator& comm, const std::function<void()>& work) {
  comm.barrier();
  const auto start = Clock::now();
  work();
  double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  MPI_Allreduce(MPI_IN_PLACE, &ms, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return ms;
}

void check(const std::vector<at::Tensor>& parameters, int size, int turn, const char* who) {
  const double mean = turn % 7 + 4 * (size - 1) / 2.0;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().eq(mean).all().item<bool>())
      throw Error(std::string(who) + ": a wrong mean in turn " + std::to_string(turn));
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Medians and the ratios' range of two contenders, by turn.
struct Comparison {
  std::vector<double> theirs, ours, ratios;

  void add(double their_ms, double own_ms) {
    theirs.push_back(their_ms);
    ours.push_back(own_ms);
    ratios.push_back(their_ms / own_ms);
  }
  nlohmann::json row(const std::string& name) const {
    return {{"mpi_ms", median(theirs)},
            {name + "_ms", median(ours)},
            {"times_mpi", median(ratios)},
            {"times_mpi_low", *std::min_element(ratios.begin(), ratios.end())},
            {"times_mpi_high", *std::max_element(ratios.begin(), ratios.end())}};
  }
};

// The gradient of a parameter is its factor.
void backward(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& factors) {
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor(parameters[i]).mutable_grad().reset();
    loss = loss + (parameters[i] * factors[i]).sum();
  }
  loss.backward();
}

Comparison with_backward(Communicator& comm, const NamedTensors& named,
                         const std::vector<at::Tensor>& parameters, int rounds) {
  std::vector<at::Tensor> factors;
  for (const at::Tensor& parameter : parameters)
    factors.push_back(at::empty_like(parameter.detach()));
  Comparison result;
  GradientAverager averager(named, comm);
  for (int turn = -2; turn < rounds; ++turn) {  // the first plans the buckets
    for (const at::Tensor& factor : factors)
      factor.fill_(static_cast<double>((turn + 2) % 7 + 4 * comm.rank()));
    const double mpi = time_of(comm, [&] {
      const NoSync alone = averager.no_sync();
      backward(parameters, factors);
      by_mpi(parameters);
    });
    check(parameters, comm.size(), turn + 2, "MPI_Allreduce after backward");
    const double own = time_of(comm, [&] { backward(parameters, factors); });
    check(parameters, comm.size(), turn + 2, "GradientAverager");
    if (turn >= 0) result.add(mpi, own);
  }
  return result;
}

nlohmann::json measure(Communicator& comm, const std::string& model, int rounds,
                       const AverageOptions& options) {
  const std::vector<at::Tensor> parameters = parameters_of_model(model);
  NamedTensors named;
  int64_t bytes = 0;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor(parameter).mutable_grad() = at::zeros_like(parameter);
    named.emplace_back("parameter " + std::to_string(named.size()), parameter);
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  Comparison after;
  for (int turn = -1; turn < rounds; ++turn) {  // the first one warms up
    rewrite(parameters, comm.rank(), turn + 1);
    const double mpi = time_of(comm, [&] { by_mpi(parameters); });
    check(parameters, comm.size(), turn + 1, "MPI_Allreduce");
    rewrite(parameters, comm.rank(), turn + 1);
    const double own = time_of(comm, [&] { average_gradients(named, comm, options); });
    check(parameters, comm.size(), turn + 1, "average_gradients");
    if (turn >= 0) after.add(mpi, own);
  }
  const Comparison meanwhile = with_backward(comm, named, parameters, rounds);
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(library, &length);
  const std::string version(library);
  return {{"model", model},
          {"ranks", comm.size()},
          {"backend", comm.capabilities().backend},
          {"mpi", version.substr(0, version.find_first_of(",\n"))},
          {"parameters", parameters.size()},
          {"bytes", bytes},
          {"rounds", rounds},
          {"bucket_bytes", options.bucket_bytes},
          {"after_backward", after.row("average_gradients")},
          {"with_backward", meanwhile.row("gradient_averager")}};
}

void print(const nlohmann::json& row) {
  const auto number = [](const nlohmann::json& of, const char* name) {
    return of.at(name).get<double>();
  };
  const nlohmann::json &after = row.at("after_backward"), &with = row.at("with_backward");
  std::printf(
      "%s: %d ranks over %s, %s, %.1f MiB in %d gradients\n"
      "  after backward: MPI_Allreduce %.2f ms, average_gradients %.2f ms: %.2f times as fast "
      "(%.2f-%.2f)\n"
      "  with a backward: MPI_Allreduce %.2f ms, GradientAverager %.2f ms: %.2f times as fast "
      "(%.2f-%.2f)\n",
      row["model"].get<std::string>().c_str(), row["ranks"].get<int>(),
      row["backend"].get<std::string>().c_str(), row["mpi"].get<std::string>().c_str(),
      row["bytes"].get<double>() / (1 << 20), row["parameters"].get<int>(), number(after, "mpi_ms"),
      number(after, "average_gradients_ms"), number(after, "times_mpi"),
      number(after, "times_mpi_low"), number(after, "times_mpi_high"), number(with, "mpi_ms"),
      number(with, "gradient_averager_ms"), number(with, "times_mpi"),
      number(with, "times_mpi_low"), number(with, "times_mpi_high"));
  std::fflush(stdout);
}

void run(int argc, char** argv) {
  CLI::App app("Compares average_gradients() with one MPI_Allreduce for each parameter.");
  std::vector<std::string> models = {"resnet18", "bert-base"};
  int rounds = 9;
  AverageOptions options;
  std::string json;
  app.add_option("--model", models, "resnet18, bert-base")->delimiter(',');
  app.add_option("--rounds", rounds, "turns of each, which alternate")->check(CLI::PositiveNumber);
  app.add_option("--bucket-bytes", options.bucket_bytes, "0: one all-reduce for each parameter");
  app.add_option("--json", json, "a file for the rows");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) throw InvalidArgument("wrong arguments");
    return;
  }
  at::set_num_threads(1);
  Communicator comm = from_mpi(MPI_COMM_WORLD);
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& model : models) {
    rows.push_back(measure(comm, model, rounds, options));
    if (comm.rank() == 0) print(rows.back());
  }
  if (comm.rank() == 0 && !json.empty()) {
    std::ofstream file(json);
    file << rows.dump(1) << "\n";
    if (!file.flush()) throw SystemError("cannot write " + json, errno);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "average_gradients: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
