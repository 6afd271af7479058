// generation_config.json of Hugging Face's folders: how texts are gone on with where nobody says otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

inline constexpr const char* kGenerationConfig = "generation_config.json";

// What the file says of what SamplingOptions and GenerateOptions have.
struct GenerationConfig {
  std::optional<double> temperature = {};  // 0 where "do_sample" is false
  std::optional<int64_t> top_k = {};
  std::optional<double> top_p = {};
  std::optional<int64_t> max_new_tokens = {};
  std::vector<int64_t> eos_token_ids = {};  // any of them ends a text; empty: those of config.json

  bool operator==(const GenerationConfig&) const = default;
};

// Other members are read over. Throws CheckpointError of one line that begins with `source`: not JSON, or a
// value that makes no sense.
GenerationConfig generation_config_from_json(std::string_view text, const std::string& source);

}  // namespace lockstep
