#include "lockstep/plan/machine/stack.h"

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"

namespace lockstep::inline v0::plan {
namespace {

using nlohmann::ordered_json;

// The numbers of a stack by name, with the most that makes sense.
struct Field {
  const char* name;
  double Stack::* value;
  double least, most;
};
constexpr Field kFields[] = {
    {"matrix", &Stack::matrix, 1e-6, 1},
    {"half", &Stack::half, 0, 1e6},
    {"attention", &Stack::attention, 1e-6, 1},
    {"memory", &Stack::memory, 1e-6, 1},
    {"passes", &Stack::passes, 0, 100},
    {"links", &Stack::links, 1e-6, 1},
    {"overlap", &Stack::overlap, 0, 1},
    {"tensor_overlap", &Stack::tensor_overlap, 0, 1},
    {"straggling", &Stack::straggling, 0, 1},
    {"host", &Stack::host, 0, 3600},
    {"fixed_bytes", &Stack::fixed_bytes, 0, 1e15},
    {"logit_bytes", &Stack::logit_bytes, 0, 1000},
    {"fragmentation", &Stack::fragmentation, 0, 10},
};

}  // namespace

Stack stack_from_json(std::string_view text, const std::string& source) {
  const auto json = parse_json(text, source, refuse_as<InvalidArgument>, {.once = true});
  const JsonObject file(json, source, refuse_as<InvalidArgument>);
  Stack stack;
  stack.name = file.text("name", source);
  stack.source = file.text("source", "");
  stack.fused_attention = file.flag("fused_attention", stack.fused_attention);
  stack.keeps_gathered = file.flag("keeps_gathered", stack.keeps_gathered);
  for (const auto& [name, value, least, most] : kFields)
    stack.*value = file.number_or(stack.*value, name, least, most);
  for (const auto& [key, value] : json.items()) {
    const bool known = key == "name" || key == "source" || key == "fused_attention" ||
                       key == "keeps_gathered" ||
                       std::any_of(std::begin(kFields), std::end(kFields),
                                   [&](const Field& field) { return key == field.name; });
    if (!known) file.say(key, "is no field of a stack; leave it out");
  }
  return stack;
}

std::string to_json(const Stack& stack) {
  ordered_json object{{"name", stack.name},
                      {"fused_attention", stack.fused_attention},
                      {"keeps_gathered", stack.keeps_gathered}};
  for (const Field& field : kFields) object[field.name] = stack.*field.value;
  object["source"] = stack.source;
  return object.dump(2) + "\n";
}

}  // namespace lockstep::inline v0::plan
