// What export_parity.py runs: export_parity FOLDER leaves there, for each of some modules, NAME/model.py (module_to_python()),
// NAME/model.safetensors and NAME/batch.safetensors (x and y = module(x), in evaluation); and for each of some optimizers
// optimizers/NAME: a checkpoint after kSteps steps, batches.safetensors (x and y of all steps) and trained.safetensors, the
// parameters after as many steps more.
#include <lockstep/checkpoint/checkpoint_directory.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/named_optimizer_state.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/export/module_to_python.h>
#include <lockstep/optim/adam.h>
#include <lockstep/optim/sgd.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

namespace {

using namespace lockstep;
namespace fs = std::filesystem;
namespace nn = torch::nn;

constexpr int kSteps = 6;

// libtorch's Sequential cannot be put into another one.
class BlockImpl : public nn::SequentialImpl {
 public:
  template <typename... Modules>
  explicit BlockImpl(Modules&&... modules)
      : nn::SequentialImpl(std::forward<Modules>(modules)...) {}
  at::Tensor forward(const at::Tensor& x) { return nn::SequentialImpl::forward(x); }
};
TORCH_MODULE(Block);

void write_module(const fs::path& folder, nn::Sequential net, const at::Tensor& x) {
  fs::create_directories(folder);
  {  // Statistics and parameters that are not what they begin with.
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->parameters())
      parameter.add_(0.1 * at::randn_like(parameter));
    net->train();
    for (int i = 0; i < 3; ++i) net->forward(x);
  }
  net->eval();
  const at::NoGradGuard no_grad;
  std::ofstream(folder / "model.py")
      << module_to_python(*net, "Net", {.in_order = {BlockImpl().name()}});
  save(*net, folder / "model.safetensors");
  write_safetensors(folder / "batch.safetensors", {{"x", x}, {"y", net->forward(x).contiguous()}});
}

void write_modules(const fs::path& folder) {
  Block block(nn::Conv2d(nn::Conv2dOptions(4, 6, 3).padding(torch::kSame).bias(false)),
              nn::BatchNorm2d(6), nn::GELU(), nn::Dropout2d(0.3));
  nn::Sequential pictures(
      {{"first", nn::AnyModule(nn::Conv2d(nn::Conv2dOptions(3, 4, {3, 5})
                                              .stride(2)
                                              .padding({1, 2})
                                              .padding_mode(torch::kReflect)))},
       {"act", nn::AnyModule(nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)))},
       {"block", nn::AnyModule(block)},
       {"pool", nn::AnyModule(nn::MaxPool2d(nn::MaxPool2dOptions(2).ceil_mode(true)))},
       {"norm", nn::AnyModule(nn::GroupNorm(nn::GroupNormOptions(2, 6)))},
       {"up", nn::AnyModule(nn::ConvTranspose2d(
                  nn::ConvTranspose2dOptions(6, 6, 3).stride(2).output_padding(1)))},
       {"mean", nn::AnyModule(nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({2, 2})))},
       {"flat", nn::AnyModule(nn::Flatten())},
       {"drop", nn::AnyModule(nn::Dropout(0.5))},
       {"out", nn::AnyModule(nn::Linear(24, 5))}});
  write_module(folder / "pictures", pictures, at::randn({3, 3, 12, 12}));
  nn::Sequential tokens(nn::Embedding(nn::EmbeddingOptions(11, 8).padding_idx(0)),
                        nn::LayerNorm(nn::LayerNormOptions({8})), nn::Linear(8, 6), nn::SiLU(),
                        nn::Linear(nn::LinearOptions(6, 4).bias(false)), nn::Softplus(),
                        nn::Softmax(-1));
  write_module(folder / "tokens", tokens, at::randint(11, {3, 5}, at::kLong));
  nn::Sequential doubles(nn::Linear(4, 6), nn::BatchNorm1d(6), nn::PReLU(), nn::ELU(),
                         nn::Linear(6, 3), nn::Tanh());
  doubles->to(at::kDouble);
  write_module(folder / "doubles", doubles, at::randn({5, 4}, at::kDouble));
}

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(nn::Sequential&)>;

void write_optimizer(const fs::path& folder, at::ScalarType dtype, const Make& make,
                     bool by_names) {
  fs::create_directories(folder);
  nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 3));
  net->to(dtype);
  const auto optimizer = make(net);
  const at::Tensor x = at::randn({2 * kSteps, 16, 4}, dtype),
                   y = at::randn({2 * kSteps, 16, 3}, dtype);
  write_safetensors(folder / "batches.safetensors", {{"x", x}, {"y", y}});
  for (int step = 0; step < 2 * kSteps; ++step) {
    if (step == kSteps) {
      Checkpoint checkpoint;
      checkpoint.model.tensors = module_state(*net);
      const Safetensors state = optimizer_state(*optimizer);
      checkpoint.optimizer = by_names ? by_name(state, parameter_names(*net, *optimizer).value())
                                      : SlicedTensors(state);
      checkpoint.trainer_json = checkpoint.config_json = "{}";
      write_checkpoint(folder / "checkpoint", checkpoint);
    }
    optimizer->zero_grad();
    torch::mse_loss(net->forward(x[step]), y[step]).backward();
    optimizer->step();
  }
  save(*net, folder / "trained.safetensors");
}

// Two groups, of which the second decays.
std::vector<torch::optim::OptimizerParamGroup> groups_of(nn::Sequential& net) {
  std::vector<at::Tensor> weights, biases;
  for (const auto& item : net->named_parameters())
    (item.value().dim() == 2 ? weights : biases).push_back(item.value());
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(biases, std::make_unique<torch::optim::AdamWOptions>(
                                  torch::optim::AdamWOptions(0.02).weight_decay(0)));
  groups.emplace_back(weights, std::make_unique<torch::optim::AdamWOptions>(
                                   torch::optim::AdamWOptions(0.01).weight_decay(0.1)));
  return groups;
}

void write_optimizers(const fs::path& folder) {
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01);
  const auto adam = torch::optim::AdamOptions(0.01).betas({0.8, 0.95}).weight_decay(0.01);
  const std::vector<std::pair<std::string, Make>> all{
      {"sgd",
       [&](auto& net) { return std::make_unique<torch::optim::SGD>(net->parameters(), sgd); }},
      {"plain_sgd",
       [&](auto& net) {
         return std::make_unique<torch::optim::SGD>(net->parameters(),
                                                    torch::optim::SGDOptions(0.05));
       }},
      {"adam",
       [&](auto& net) { return std::make_unique<torch::optim::Adam>(net->parameters(), adam); }},
      {"amsgrad",
       [&](auto& net) {
         return std::make_unique<torch::optim::Adam>(net->parameters(),
                                                     torch::optim::AdamOptions(0.01).amsgrad(true));
       }},
      {"adamw",
       [&](auto& net) {
         return std::make_unique<torch::optim::AdamW>(groups_of(net),
                                                      torch::optim::AdamWOptions(0.01));
       }},
      {"rmsprop",
       [&](auto& net) {
         return std::make_unique<torch::optim::RMSprop>(
             net->parameters(), torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
       }},
      {"adagrad",
       [&](auto& net) {
         return std::make_unique<torch::optim::Adagrad>(
             net->parameters(), torch::optim::AdagradOptions(0.05).lr_decay(0.01));
       }},
      {"fused_sgd",
       [&](auto& net) { return std::make_unique<optim::FusedSGD>(net->parameters(), sgd); }},
      {"fused_adam",
       [&](auto& net) { return std::make_unique<optim::FusedAdam>(net->parameters(), adam); }},
      {"fused_adamw",
       [&](auto& net) {
         return std::make_unique<optim::FusedAdamW>(groups_of(net),
                                                    torch::optim::AdamWOptions(0.01));
       }},
  };
  for (const auto& [name, make] : all) {
    write_optimizer(folder / (name + "_float32"), at::kFloat, make, /*by_names=*/true);
    write_optimizer(folder / (name + "_float64"), at::kDouble, make, /*by_names=*/true);
  }
  write_optimizer(folder / "by_position_float64", at::kDouble, all[2].second, /*by_names=*/false);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: export_parity FOLDER\n", stderr);
    return 2;
  }
  try {
    torch::manual_seed(7);
    write_modules(argv[1]);
    write_optimizers(fs::path(argv[1]) / "optimizers");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "export_parity: %s\n", error.what());
    return 1;
  }
}
