// What bert_parity.py runs: bert_parity CONFIG FOLDER reads CONFIG (a config.json),
// model.safetensors and batch.safetensors (ids, mask, types, lengths, labels; what is absent is not
// given) from FOLDER, and leaves there the logits and the loss, in gradients.safetensors the
// gradients. With PATH, the Linear of that name is first replaced from outside by another one, whose
// weights are half as large. With STEPS and RATE, instead trains that many steps with AdamW on that
// batch and leaves losses.safetensors and trained.safetensors.
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/hooks/forward_hook.h>
#include <lockstep/model/bert.h>
#include <lockstep/optim/adam.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

using namespace lockstep;

at::Tensor tensor_of(const Safetensors& batch, const char* name) {
  const at::Tensor* found = batch.find(name);
  return found == nullptr ? at::Tensor() : *found;
}

at::Tensor logits_of(BertClassifier& model, const Safetensors& batch) {
  return model->forward(tensor_of(batch, "ids"), tensor_of(batch, "mask"),
                        tensor_of(batch, "types"), tensor_of(batch, "lengths"));
}

at::Tensor loss_of(const at::Tensor& logits, const Safetensors& batch) {
  return torch::nn::functional::cross_entropy(logits, *batch.find("labels"));
}

void compare_once(BertClassifier& model, const Safetensors& batch,
                  const std::filesystem::path& folder) {
  const at::Tensor logits = logits_of(model, batch);
  const at::Tensor loss = loss_of(logits, batch);
  loss.backward();
  NamedTensors gradients;
  for (const auto& item : model->named_parameters())
    gradients.emplace_back(item.key(), item.value().grad());
  write_safetensors(folder / "gradients.safetensors", gradients);
  write_safetensors(folder / "logits.safetensors",
                    {{"logits", logits.detach()}, {"loss", loss.detach()}});
}

void train(BertClassifier& model, const Safetensors& batch, int steps, double rate,
           const std::filesystem::path& folder) {
  optim::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(rate));
  const at::Tensor losses = torch::empty({steps});
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(logits_of(model, batch), batch);
    loss.backward();
    optimizer.step();
    losses[step] = loss.item<float>();
  }
  write_safetensors(folder / "losses.safetensors", {{"losses", losses}});
  save(model, folder / "trained.safetensors");
}

void replace(BertClassifier& model, const std::string& path) {
  const auto old = std::dynamic_pointer_cast<torch::nn::LinearImpl>(find_module(*model, path));
  torch::nn::Linear other(old->options);
  {
    const torch::NoGradGuard no_grad;
    other->weight.copy_(old->weight * 0.5);
    other->bias.copy_(old->bias);
  }
  replace_child(*model, path, other, {.release_memory = true});
}

void run(int count, char** arguments) {
  const std::filesystem::path folder = arguments[2];
  std::ifstream file(arguments[1]);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  BertClassifier model(bert_config_from_json(text, arguments[1]));
  load(model, folder / "model.safetensors");
  const Safetensors batch = read_safetensors(folder / "batch.safetensors");
  if (count == 4) replace(model, arguments[3]);
  if (count > 4)
    train(model, batch, std::stoi(arguments[3]), std::stod(arguments[4]), folder);
  else
    compare_once(model, batch, folder);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 5) {
    std::fputs("usage: bert_parity CONFIG FOLDER [PATH | STEPS RATE]\n", stderr);
    return 2;
  }
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bert_parity: %s\n", error.what());
    return 1;
  }
}
