// What ema_parity.py runs: ema_parity DECAY STEPS FOLDER parameters|buffers. It reads
// parameters-0.safetensors and buffers-0.safetensors, ... from FOLDER, takes them as a model after
// each step, and leaves the model with the average in it there, averaged-0.safetensors, ... The
// last argument says whether buffers are averaged as well.
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/flat/tensor_model.h>
#include <lockstep/optim/exponential_average.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

namespace {

using lockstep::NamedTensors;

NamedTensors copied(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.clone());
  return copies;
}

void run(char** arguments) {
  const double decay = std::stod(arguments[1]);
  const int steps = std::stoi(arguments[2]);
  const std::filesystem::path folder = arguments[3];
  const bool buffers = std::string(arguments[4]) == "buffers";
  const auto file = [&](const char* what, int step) {
    return folder / (what + std::to_string(step) + ".safetensors");
  };
  const auto first = [&](const char* what) {
    return copied(lockstep::read_safetensors(file(what, 0)).tensors);
  };
  const lockstep::TensorModel model(
      first("parameters-"), [](const at::Tensor& x) { return x; }, first("buffers-"));
  lockstep::optim::ExponentialAverage average(model, {.decay = decay, .averages_buffers = buffers});
  for (int step = 0; step < steps; ++step) {
    for (const auto& [what, own] : {std::pair("parameters-", model.named_parameters()),
                                    std::pair("buffers-", model.named_buffers())}) {
      const lockstep::Safetensors now = lockstep::read_safetensors(file(what, step));
      for (const auto& [name, tensor] : own) tensor.copy_(*now.find(name));
    }
    average.update();
    const auto in_model = average.in_model();
    lockstep::write_safetensors(file("averaged-", step), lockstep::state_of(model));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: ema_parity DECAY STEPS FOLDER parameters|buffers\n", stderr);
    return 2;
  }
  try {
    run(argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ema_parity: %s\n", error.what());
    return 1;
  }
}
