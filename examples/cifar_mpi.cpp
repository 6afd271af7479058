// The book's first training program: every step of data parallelism by hand, as with mpi4py.
#include <ATen/core/grad_mode.h>
#include <lockstep/replicas/average_gradients.h>

#include <sstream>

#include "cifar_training.h"

namespace {

// data[rank::size], cut so that all ranks have equally many.
std::vector<int64_t> every_nth(int64_t samples, int rank, int size) {
  std::vector<int64_t> mine;
  for (int64_t i = rank; i < samples / size * size; i += size) mine.push_back(i);
  return mine;
}

void print_shape(const char* name, const at::Tensor& tensor) {
  std::ostringstream line;
  line << name << " torch.Size(" << tensor.sizes() << ")\n";
  lockstep::write_all(STDOUT_FILENO, line.str());
}

void train(lockstep::Communicator& comm, const CifarTraining& settings) {
  // Divide: each rank has its own part of the data.
  const auto dataset = settings.load();
  lockstep::data::SubsetSampler sampler(every_nth(dataset.size(), comm.rank(), comm.size()),
                                        {.shuffle = false});
  lockstep::data::Loader loader(dataset, sampler,
                                {.batch_size = kBatchSize, .device = comm.device()});

  // Synchronise: all ranks begin with rank 0's parameters.
  lockstep::ResNet model;  // resnet18
  model->to(comm.device());
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) comm.broadcast(parameter, 0);
  }

  const double lr = 0.001;
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    for (auto& [data, target] : loader) {
      model->zero_grad();
      const auto output = model(data);
      if (comm.rank() == 0) {
        print_shape("data", data);
        print_shape("output", output);
        print_shape("target", target);
      }
      torch::nn::functional::cross_entropy(output, target).backward();

      // Gather: the mean of all ranks' gradients. Then all take the same step.
      lockstep::average_gradients(model, comm);
      const at::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter -= lr * parameter.grad();
    }
  }
  finish(comm, model);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains resnet18 on CIFAR-10 with plain SGD, averaging the gradients by hand.");
  CifarTraining settings;
  settings.add_options(app);
  CLI11_PARSE(app, argc, argv);
  return on_ranks(settings.nproc, [&](auto& comm) { train(comm, settings); });
}
