// An emulator of an ensemble: an MPI program integrates the members of a small model of the
// atmosphere (Lorenz, "Predictability: a problem partly solved", 1996), and trains a network on
// their states while they go on. The loop is the program's own: broadcast_parameters() before it,
// and average_gradients() in it.
//
//   mpirun -n 2 build/release/bin/examples/mpi_ensemble --output emulator.safetensors
#include <lockstep/lockstep.h>
#include <lockstep/mpi.h>
#include <mpi.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int64_t kPoints = 16;  // of a member's circle
constexpr double kForcing = 8, kTimeStep = 0.05;

// dx/dt at each point: x[i-1] (x[i+1] - x[i-2]) - x[i] + F. Of [members, points].
at::Tensor tendency(const at::Tensor& x) {
  return x.roll(1, 1) * (x.roll(-1, 1) - x.roll(2, 1)) - x + kForcing;
}

// A step of Runge and Kutta.
at::Tensor integrated(const at::Tensor& x) {
  const at::Tensor a = tendency(x), b = tendency(x + a * (kTimeStep / 2)),
                   c = tendency(x + b * (kTimeStep / 2)), d = tendency(x + c * kTimeStep);
  return x + (a + 2 * b + 2 * c + d) * (kTimeStep / 6);
}

// The members of this rank, each disturbed in its own way and past the first transient.
at::Tensor members_of(int rank, int ranks, int64_t members) {
  std::vector<at::Tensor> own;
  for (int64_t m = rank; m < members; m += ranks) {
    const at::Tensor disturbance = torch::arange(kPoints, torch::kDouble).add(3.0 * m).sin();
    own.push_back(kForcing + disturbance);
  }
  at::Tensor x = own.empty() ? torch::empty({0, kPoints}, torch::kDouble) : torch::stack(own);
  for (int i = 0; i < 200; ++i) x = integrated(x);
  return x;
}

// What a point becomes depends on its neighbours: a filter over the circle.
struct EmulatorImpl : torch::nn::Module {
  EmulatorImpl() {
    using Options = torch::nn::Conv1dOptions;
    wide = register_module("wide", torch::nn::Conv1d(Options(1, 24, 7)));
    narrow = register_module("narrow", torch::nn::Conv1d(Options(24, 1, 1)));
    to(torch::kDouble);
  }
  // [members, points] gives the change in a step.
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor circle = torch::cat({x.slice(1, -3), x, x.slice(1, 0, 3)}, 1) / kForcing;
    return narrow(torch::tanh(wide(circle.unsqueeze(1)))).squeeze(1);
  }
  torch::nn::Conv1d wide{nullptr}, narrow{nullptr};
};
TORCH_MODULE(Emulator);

void run(int argc, char** argv) {
  CLI::App app("Trains an emulator of an ensemble of Lorenz-96 models while they run.");
  int64_t members = 8, steps = 300;
  std::string output;
  app.add_option("--members", members, "of the ensemble, over all ranks");
  app.add_option("--steps", steps, "of the models, each with a step of training");
  app.add_option("--output", output, "a safetensors file for the network, which rank 0 writes");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) throw std::runtime_error("wrong arguments");
    return;
  }

  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  auto comm = lockstep::from_mpi(MPI_COMM_WORLD);

  at::Tensor x = members_of(rank, ranks, members);
  torch::manual_seed(7);
  Emulator net;
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));

  lockstep::broadcast_parameters(net, comm);  // all ranks begin with rank 0's network
  for (int64_t step = 1; step <= steps; ++step) {
    const at::Tensor next = integrated(x);
    optimizer.zero_grad();
    // The mean over the whole ensemble is the mean over the ranks of this: a rank with fewer
    // members counts less, and one without any counts as zero.
    at::Tensor loss = (net(x) - (next - x)).pow(2).mean(1).sum() * ranks / members;
    if (x.size(0) > 0) loss.backward();
    lockstep::average_gradients(net, comm);
    optimizer.step();
    x = next;

    double mean = loss.item<double>() / ranks;
    MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0 && (step == 1 || step % 50 == 0))
      std::printf("step %ld: loss %.12g\n", static_cast<long>(step), mean);
  }
  if (rank == 0 && !output.empty()) lockstep::save(net, output);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_ensemble: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
