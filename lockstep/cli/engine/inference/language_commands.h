// eval and predict for checkpoints of language models: ours, and directories of transformers'
// Llama.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::engine {

// `device`, of all that compute: --device (device_option.h).

// The language model that `path` means: itself, or the best or else the last checkpoint of a run's
// output directory. Nothing if there is none.
std::optional<std::filesystem::path> find_language_model(const std::filesystem::path& path);

// Prints perplexity and loss over all ranks of the job, and on what: `given`, all of a file or the
// dev set of a directory, or empty: the dev set of what it was trained on. `split`: "train" or
// "dev" instead, as training divides the data. Returns the exit code.
// Throws: what loading throws.
int eval_language(const std::filesystem::path& model, const std::string& given,
                  const std::string& split, const std::string& device, const std::string& json);

// What is not given is as the model's generation_config.json has it, or else as below.
struct Continuations {
  std::vector<std::string> prompts;
  std::optional<int64_t> max_new_tokens = {};  // 200
  std::optional<double> temperature = {};      // SamplingOptions', as all that follow
  std::optional<int64_t> top_k = {};
  std::optional<double> top_p = {};
  uint64_t seed = 0;
};
// Throws: InvalidArgument that names the option that makes no sense.
void check(const Continuations& asked);
// Prints each prompt and what follows, token by token.
// Throws: as generate(), and DataError for a prompt with characters that the model does not know.
int continue_prompts(const std::filesystem::path& path, const Continuations& asked,
                     const std::string& device, const std::string& json);

}  // namespace lockstep::engine
