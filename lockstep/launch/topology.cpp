#include "lockstep/launch/topology.h"

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>

#include "lockstep/core/env.h"

namespace lockstep::inline v0::launch {
namespace fs = std::filesystem;
namespace {

std::optional<int> number_in(const fs::path& file) {
  std::ifstream stream(file);
  std::string text;
  if (!(stream >> text)) return std::nullopt;
  const auto value = parse_int(text, 0, 1 << 30);
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

// The folder of a processor has an entry "nodeN".
int numa_node_of(const fs::path& cpu) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(cpu, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("node")) continue;
    if (const auto number = parse_int(std::string_view(name).substr(4), 0, 1 << 20))
      return static_cast<int>(*number);
  }
  return 0;
}

}  // namespace

std::vector<Processor> read_topology(const std::vector<int>& cpus, const fs::path& system) {
  std::vector<Processor> processors;
  // core_id counts within a die of a socket.
  std::map<std::tuple<int, int, int>, int> cores;
  for (const int cpu : cpus) {
    const fs::path folder = system / "cpu" / ("cpu" + std::to_string(cpu));
    const auto core = number_in(folder / "topology" / "core_id");
    const int socket = number_in(folder / "topology" / "physical_package_id").value_or(0);
    const int die = number_in(folder / "topology" / "die_id").value_or(0);
    const auto key = std::tuple(core ? socket : -1, core ? die : -1, core.value_or(cpu));
    const int number = cores.emplace(key, static_cast<int>(cores.size())).first->second;
    processors.push_back(
        {.cpu = cpu, .core = number, .numa = numa_node_of(folder), .socket = socket});
  }
  return processors;
}

}  // namespace lockstep::inline v0::launch
