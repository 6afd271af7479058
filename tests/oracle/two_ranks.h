// What pipeline_parity and tensor_parity share: the folder that two_ranks.py describes.
#pragma once

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/model/transformer_lm.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace oracle {

constexpr int kRanks = 2;

struct Batches {
  at::Tensor ids, targets;  // int64 [steps, rows, tokens]
};

inline lockstep::TransformerLm model_of(const std::filesystem::path& folder) {
  std::ifstream file(folder / "config.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const lockstep::Safetensors initial = lockstep::read_safetensors(folder / "model.safetensors");
  lockstep::TransformerLm model(lockstep::lm_config_from_json(text, "config.json"),
                                lockstep::LmOptions{.initial = lockstep::InitialParameters::kNone});
  model->to(initial.tensors.front().second.scalar_type());
  load(model, folder / "model.safetensors");
  return model;
}

inline Batches batches_of(const std::filesystem::path& folder) {
  const lockstep::Safetensors batches = lockstep::read_safetensors(folder / "batches.safetensors");
  return {*batches.find("ids"), *batches.find("targets")};
}

// One rank's, of the parameters that it has.
struct Results {
  std::vector<double> losses;
  lockstep::NamedTensors gradients, trained;  // of the first step; after the last one
};

inline void write(const std::filesystem::path& folder, const Results& results) {
  lockstep::write_safetensors(folder / "losses.safetensors",
                              {{"losses", torch::tensor(results.losses, at::kDouble)}});
  lockstep::write_safetensors(folder / "gradients.safetensors", results.gradients);
  lockstep::write_safetensors(folder / "trained.safetensors", results.trained);
}

inline lockstep::NamedTensors gradients_of(const lockstep::NamedTensors& parameters) {
  lockstep::NamedTensors gradients;
  for (const auto& [name, parameter] : parameters)
    gradients.emplace_back(name, parameter.grad().clone());
  return gradients;
}

// Exit code of `run`, with what it throws said on stderr.
inline int guarded(const char* program, const std::function<void()>& run) {
  try {
    run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace oracle
