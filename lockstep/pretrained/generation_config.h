// generation_config.json of Hugging Face's directories: the default settings for generating text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

inline constexpr const char* kGenerationConfig = "generation_config.json";  // the name of the file

// The settings of the file that SamplingOptions and GenerateOptions also have.
struct GenerationConfig {
  std::optional<double> temperature = {};  // 0 where "do_sample" is false
  std::optional<int64_t> top_k = {};
  std::optional<double> top_p = {};
  std::optional<int64_t> max_new_tokens = {};
  std::vector<int64_t> eos_token_ids = {};  // any of them ends a text; empty: those of config.json

  bool operator==(const GenerationConfig&) const = default;
};

// Other members are ignored.
// Throws: CheckpointError with one line that begins with `source` if the text is not JSON or a
// value makes no sense.
LOCKSTEP_API GenerationConfig generation_config_from_json(std::string_view text,
                                                          const std::string& source);

}  // namespace lockstep::inline v0
