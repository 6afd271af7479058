#include "lockstep/pretrained/generation_config.h"

#include <limits>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"

namespace lockstep::inline v0 {

GenerationConfig generation_config_from_json(std::string_view text, const std::string& source) {
  constexpr JsonRefusal kRefusal = refuse_as<CheckpointError>;
  const nlohmann::json parsed = parse_json(text, source, kRefusal);
  const JsonObject file(parsed, source, kRefusal);
  GenerationConfig config;
  if (file.has("temperature"))
    config.temperature = file.number("temperature", 0, JsonObject::kAnyNumber);
  if (!file.flag("do_sample", true)) config.temperature = 0;
  if (file.has("top_k")) config.top_k = file.whole("top_k", 0);
  if (file.has("top_p"))
    config.top_p =
        file.number("top_p", std::numeric_limits<double>::min(), 1, "a number above 0, up to 1");
  if (file.has("max_new_tokens")) config.max_new_tokens = file.whole("max_new_tokens", 1);
  constexpr const char* kEnds = "eos_token_id";
  if (!file.has(kEnds)) return config;
  if (!file.find(kEnds)->is_array()) {
    config.eos_token_ids.push_back(file.whole(kEnds, 0));
    return config;
  }
  for (const nlohmann::json& id : file.list(kEnds))
    config.eos_token_ids.push_back(whole_of(id, file.path(kEnds), kRefusal, 0));
  return config;
}

}  // namespace lockstep::inline v0
