// What resnet_parity.py runs: resnet_parity DEPTH imagenet|cifar CLASSES SEED FOLDER reads
// model.safetensors and batch.safetensors (images, targets) from FOLDER, takes the first step's
// forward and backward, and leaves there what it drew, the logits, the gradients and the state.
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/model/resnet.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

namespace {

void run(char** arguments) {
  using namespace lockstep;
  const std::filesystem::path folder = arguments[5];
  torch::manual_seed(std::stoull(arguments[4]));
  ResNet model(ResNetOptions{
      .depth = std::stoi(arguments[1]),
      .stem = std::string(arguments[2]) == "cifar" ? ResNetStem::kCifar : ResNetStem::kImageNet,
      .num_classes = std::stoll(arguments[3])});
  save(model, folder / "drawn.safetensors");

  const Safetensors batch = read_safetensors(folder / "batch.safetensors");
  const at::Tensor &images = *batch.find("images"), &targets = *batch.find("targets");
  // Module::to(dtype) would convert num_batches_tracked as well, which Python's leaves alone.
  for (auto& [name, tensor] : module_state(*model)) {
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(images.scalar_type()));
  }
  load(model, folder / "model.safetensors");
  const at::Tensor trained = model->forward(images);
  torch::nn::functional::cross_entropy(trained, targets).backward();
  NamedTensors gradients;
  for (const auto& item : model->named_parameters())
    gradients.emplace_back(item.key(), item.value().grad());
  write_safetensors(folder / "gradients.safetensors", gradients);
  save(model, folder / "state.safetensors");

  model->eval();
  const torch::NoGradGuard no_grad;
  write_safetensors(folder / "logits.safetensors",
                    {{"train", trained.detach()}, {"eval", model->forward(images)}});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("usage: resnet_parity DEPTH imagenet|cifar CLASSES SEED FOLDER\n", stderr);
    return 2;
  }
  try {
    run(argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "resnet_parity: %s\n", error.what());
    return 1;
  }
}
