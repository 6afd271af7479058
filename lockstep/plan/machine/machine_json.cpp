#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/plan/machine/machine.h"

namespace lockstep::inline v0::plan {
namespace {

using nlohmann::ordered_json;

constexpr double kMost = 1e18;

Link read_link(const JsonObject& file, const char* key) {
  const JsonObject link = file.object(key);
  return {.latency = link.number_or(0, "latency", 0, kMost),
          .bandwidth = link.number("bandwidth", 1, kMost)};
}

ordered_json json_of(const Link& link) {
  return {{"latency", link.latency}, {"bandwidth", link.bandwidth}};
}

}  // namespace

Machine machine_from_json(std::string_view text, const std::string& source) {
  const auto json = parse_json(text, source, refuse_as<InvalidArgument>, {.once = true});
  const JsonObject file(json, source, refuse_as<InvalidArgument>);
  const std::vector<std::string> known{
      "name",   "ranks_per_host",   "float32", "bfloat16", "float8",  "memory",     "launch",
      "inside", "memory_bandwidth", "between", "host",     "sources", "processors", "collectives"};
  for (const auto& [key, value] : json.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      file.say(key, "is no field of a machine; leave it out");
  Machine machine;
  machine.name = file.text("name", source);
  machine.ranks_per_host = static_cast<int>(file.whole_or(1, "ranks_per_host", 1, 4096));
  machine.float32 = file.number("float32", 1, kMost);
  machine.bfloat16 = file.number_or(0, "bfloat16", 0, kMost);
  machine.float8 = file.number_or(0, "float8", 0, kMost);
  machine.memory = file.number("memory", 1, kMost);
  machine.memory_bandwidth = file.number("memory_bandwidth", 1, kMost);
  machine.launch = file.number_or(0, "launch", 0, 1);
  machine.inside = read_link(file, "inside");
  machine.between = read_link(file, "between");
  machine.host = file.flag("host", false);
  machine.processors = static_cast<int>(file.whole_or(0, "processors", 0, 65536));
  const JsonObject collectives = file.object_or_empty("collectives");
  for (const auto& [key, value] : collectives.members().items()) {
    const auto& all = all_collectives();
    const auto named =
        std::find_if(all.begin(), all.end(), [&](Collective one) { return key == name_of(one); });
    if (named == all.end()) collectives.say(key, "is no collective; leave it out");
    machine.collectives[*named] = read_link(collectives, key.c_str());
  }
  const JsonObject sources = file.object_or_empty("sources");
  for (const auto& [key, value] : sources.members().items())
    machine.sources[key] = text_of(value, sources.path(key), refuse_as<InvalidArgument>);
  check(machine);
  return machine;
}

std::string to_json(const Machine& machine) {
  ordered_json object{{"name", machine.name},
                      {"ranks_per_host", machine.ranks_per_host},
                      {"float32", machine.float32},
                      {"bfloat16", machine.bfloat16},
                      {"float8", machine.float8},
                      {"memory", machine.memory},
                      {"memory_bandwidth", machine.memory_bandwidth},
                      {"launch", machine.launch},
                      {"inside", json_of(machine.inside)},
                      {"between", json_of(machine.between)},
                      {"host", machine.host},
                      {"processors", machine.processors}};
  if (!machine.collectives.empty()) {
    ordered_json collectives = ordered_json::object();
    for (const auto& [collective, link] : machine.collectives)
      collectives[name_of(collective)] = json_of(link);
    object["collectives"] = collectives;
  }
  ordered_json sources = ordered_json::object();
  for (const auto& [key, value] : machine.sources) sources[key] = value;
  object["sources"] = sources;
  return object.dump(2) + "\n";
}

}  // namespace lockstep::inline v0::plan
