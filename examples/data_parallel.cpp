// DataParallel: one process cuts each batch for several replicas of a model, and prints the shapes
// that the model sees inside and outside. Without GPUs, replicas on the CPU stand in for them.
#include <lockstep/parallel/data_parallel/data_parallel.h>
#include <torch/cuda.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

std::string size_of(const torch::Tensor& tensor) {
  std::string text;
  for (const int64_t n : tensor.sizes()) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "torch.Size([" + text + "])";
}

// A toy model that tells what each replica gets. DataParallel clones it.
struct ModelImpl : torch::nn::Cloneable<ModelImpl> {
  void reset() override {}
  std::vector<torch::Tensor> forward(const std::vector<torch::Tensor>& input) {
    // One call a line: the replicas run at the same time.
    std::printf("%s\n", ("In Model: " + size_of(input[0]) + " " + size_of(input[1])).c_str());
    return input;
  }
};
TORCH_MODULE(Model);

}  // namespace

int main() {
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  const torch::Device device = gpus > 0 ? torch::kCUDA : torch::kCPU;
  lockstep::DataParallelOptions options;
  if (gpus > 1) {
    for (int i = 0; i < gpus; ++i)
      options.devices.emplace_back(torch::kCUDA, static_cast<c10::DeviceIndex>(i));
  } else {
    options.devices = {device, device};
    std::printf("Fewer than two GPUs here: two replicas on one device (%s) stand in for them.\n",
                device.str().c_str());
  }
  std::printf("You have %zu GPUs!\n", options.devices.size());

  lockstep::DataParallel model(Model(), options);
  const auto a = torch::zeros({17, 2}, device), b = torch::zeros({15, 3}, device);
  std::printf("Outside: %s %s\n", size_of(a).c_str(), size_of(b).c_str());
  const auto output = model(std::vector<torch::Tensor>{a, b});

  torch::nn::Linear linear(5, 10);
  linear->to(options.devices[0]);
  lockstep::DataParallel layer(linear, options);
  std::printf("%s\n", size_of(layer(torch::randn({8, 5}, device))).c_str());
  return output[0].sizes() == a.sizes() ? 0 : 1;
}
