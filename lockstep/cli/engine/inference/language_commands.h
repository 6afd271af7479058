// The commands eval and predict for checkpoints of language models: Lockstep's, and directories of
// transformers' Llama.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0::engine {

// In all functions below, `device` is the value of --device (device_option.h).

// Finds the language model that `path` means: itself, or the best or else the last checkpoint of a
// run's output directory. nullopt: there is none.
std::optional<std::filesystem::path> find_language_model(const std::filesystem::path& path);

// Prints perplexity and loss over all ranks of the job, and the data: `given`, which is a file or
// the dev set of a directory; or, if it is empty, the dev set of the training data. `split`:
// "train" or "dev" instead, as training divides the data. Returns the exit code.
// Throws: what loading throws.
int eval_language(const std::filesystem::path& model, const std::string& given,
                  const std::string& split, const std::string& device, const std::string& json);

// Values that are not given come from the model's generation_config.json, or are as below.
struct Continuations {
  std::vector<std::string> prompts;
  std::optional<int64_t> max_new_tokens = {};  // 200
  std::optional<double> temperature = {};      // from here on SamplingOptions'
  std::optional<int64_t> top_k = {};
  std::optional<double> top_p = {};
  uint64_t seed = 0;
};
// Checks the values.
// Throws: InvalidArgument that names the option.
void check(const Continuations& asked);
// Prints each prompt and its continuation, token by token.
// Throws: as generate(), and DataError for a prompt with characters that the model does not know.
int continue_prompts(const std::filesystem::path& path, const Continuations& asked,
                     const std::string& device, const std::string& json);

}  // namespace lockstep::inline v0::engine
