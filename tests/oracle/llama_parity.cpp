// What llama_parity.py runs: llama_parity FOLDER reads config.json, model.safetensors and
// batch.safetensors (ids; lengths where they are packed; targets; prompt) from FOLDER, and leaves there the
// logits and the loss, in gradients.safetensors the gradients, in tokens.safetensors those that follow the
// prompt by next(), and in `again` the model as it is saved. With STEPS and RATE, instead trains that many
// steps with AdamW on that batch and leaves losses.safetensors.
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/model/lm_cache.h>
#include <lockstep/model/transformer_lm.h>
#include <lockstep/optim/adam.h>
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

at::Tensor loss_of(TransformerLm& model, const Safetensors& batch) {
  return model->loss(tensor_of(batch, "ids"), tensor_of(batch, "targets"),
                     tensor_of(batch, "lengths"));
}

// The likeliest token again and again.
at::Tensor greedy(TransformerLm& model, const at::Tensor& prompt, int64_t count) {
  LmCache cache(model->config(), prompt.size(0), prompt.size(1) + count);
  std::vector<at::Tensor> tokens;
  at::Tensor last = prompt;
  for (int64_t i = 0; i < count; ++i) {
    last = model->next(last, cache).argmax(-1, /*keepdim=*/true);
    tokens.push_back(last);
  }
  return at::cat(tokens, 1);
}

void compare_once(TransformerLm& model, const Safetensors& batch,
                  const std::filesystem::path& folder) {
  const at::Tensor logits = model(tensor_of(batch, "ids"), tensor_of(batch, "lengths"));
  const at::Tensor loss = loss_of(model, batch);
  loss.backward();
  NamedTensors gradients;
  for (const auto& item : model->named_parameters())
    gradients.emplace_back(item.key(), item.value().grad());
  write_safetensors(folder / "gradients.safetensors", gradients);
  write_safetensors(folder / "logits.safetensors",
                    {{"logits", logits.detach()}, {"loss", loss.detach()}});
  write_safetensors(folder / "tokens.safetensors",
                    {{"tokens", greedy(model, tensor_of(batch, "prompt"), 6)}});
  std::filesystem::create_directory(folder / "again");
  save(model, folder / "again" / "model.safetensors");
  std::ofstream(folder / "again" / "config.json") << to_json(model->config());
}

void train(TransformerLm& model, const Safetensors& batch, int steps, double rate,
           const std::filesystem::path& folder) {
  optim::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(rate));
  const at::Tensor losses = torch::empty({steps});
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(model, batch);
    loss.backward();
    optimizer.step();
    losses[step] = loss.item<float>();
  }
  write_safetensors(folder / "losses.safetensors", {{"losses", losses}});
}

void run(int count, char** arguments) {
  const std::filesystem::path folder = arguments[1];
  std::ifstream file(folder / "config.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  TransformerLm model(lm_config_from_json(text, "config.json"));
  load(model, folder / "model.safetensors");
  const Safetensors batch = read_safetensors(folder / "batch.safetensors");
  if (count > 2)
    train(model, batch, std::stoi(arguments[2]), std::stod(arguments[3]), folder);
  else
    compare_once(model, batch, folder);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) {
    std::fputs("usage: llama_parity FOLDER [STEPS RATE]\n", stderr);
    return 2;
  }
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama_parity: %s\n", error.what());
    return 1;
  }
}
