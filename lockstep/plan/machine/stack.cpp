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
    {"jitter", &Stack::jitter, 0, 100},
    {"host", &Stack::host, 0, 3600},
    {"fixed_bytes", &Stack::fixed_bytes, 0, 1e15},
    {"logit_bytes", &Stack::logit_bytes, 0, 1000},
    {"fragmentation", &Stack::fragmentation, 0, 10},
};

constexpr double kMostSize = 1e18, kMostFactor = 1e6;

MeasuredPart read_part(const nlohmann::json& value, const std::string& source,
                       const std::string& place) {
  const JsonObject file(value, source, refuse_as<InvalidArgument>, place);
  MeasuredPart part;
  const std::string kind = file.text("part");
  try {
    part.part = parse_step_part(kind);
  } catch (const InvalidArgument&) {
    file.refuse("part", "layer, ends or update");
  }
  for (const auto& [key, size] : {std::pair{"width", &PartShape::width},
                                  {"inner", &PartShape::inner},
                                  {"rows", &PartShape::rows},
                                  {"sequence", &PartShape::sequence}})
    part.shape.*size = file.number_or(1, key, 1, kMostSize);
  part.forward = file.number_or(1, "forward", 1 / kMostFactor, kMostFactor);
  part.backward = file.number_or(1, "backward", 1 / kMostFactor, kMostFactor);
  return part;
}

ordered_json json_of(const MeasuredPart& part) {
  return {{"part", name_of(part.part)},      {"width", part.shape.width},
          {"inner", part.shape.inner},       {"rows", part.shape.rows},
          {"sequence", part.shape.sequence}, {"forward", part.forward},
          {"backward", part.backward}};
}

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
  stack.own_model = file.flag("own_model", stack.own_model);
  stack.shares_parameters = file.flag("shares_parameters", stack.shares_parameters);
  if (file.has("measured")) {
    const nlohmann::json& measured = file.list("measured");
    for (size_t i = 0; i < measured.size(); ++i)
      stack.measured.push_back(
          read_part(measured[i], source, "measured[" + std::to_string(i) + "]"));
  }
  for (const auto& [key, value] : json.items()) {
    const bool known = key == "name" || key == "source" || key == "fused_attention" ||
                       key == "keeps_gathered" || key == "shares_parameters" ||
                       key == "own_model" || key == "measured" ||
                       std::any_of(std::begin(kFields), std::end(kFields),
                                   [&](const Field& field) { return key == field.name; });
    if (!known) file.say(key, "is no field of a stack; leave it out");
  }
  return stack;
}

std::string to_json(const Stack& stack) {
  ordered_json object{{"name", stack.name},
                      {"fused_attention", stack.fused_attention},
                      {"keeps_gathered", stack.keeps_gathered},
                      {"own_model", stack.own_model},
                      {"shares_parameters", stack.shares_parameters}};
  for (const Field& field : kFields) object[field.name] = stack.*field.value;
  if (!stack.measured.empty()) {
    ordered_json measured = ordered_json::array();
    for (const MeasuredPart& part : stack.measured) measured.push_back(json_of(part));
    object["measured"] = std::move(measured);
  }
  object["source"] = stack.source;
  return object.dump(2) + "\n";
}

}  // namespace lockstep::inline v0::plan
