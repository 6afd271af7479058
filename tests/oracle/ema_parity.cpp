// What ema_parity.py runs: ema_parity DECAY STEPS FOLDER reads step-0.safetensors, ... from FOLDER,
// takes each as the parameters after a step, and leaves the averages after each step there,
// average-0.safetensors, ...
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/optim/exponential_average.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

namespace {

void run(char** arguments) {
  using namespace lockstep;
  const double decay = std::stod(arguments[1]);
  const int steps = std::stoi(arguments[2]);
  const std::filesystem::path folder = arguments[3];
  const auto file = [&](const char* what, int step) {
    return folder / (what + std::to_string(step) + ".safetensors");
  };
  NamedTensors parameters;
  for (const auto& [name, tensor] : read_safetensors(file("step-", 0)).tensors)
    parameters.emplace_back(name, tensor.clone());
  optim::ExponentialAverage average(parameters, {.decay = decay});
  for (int step = 0; step < steps; ++step) {
    const Safetensors now = read_safetensors(file("step-", step));
    for (const auto& [name, parameter] : parameters) parameter.copy_(*now.find(name));
    average.update();
    write_safetensors(file("average-", step), average.averages());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: ema_parity DECAY STEPS FOLDER\n", stderr);
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
