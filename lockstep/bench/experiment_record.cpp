#include "lockstep/bench/experiment_record.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::inline v0::bench {
namespace fs = std::filesystem;
namespace {

// A record that was edited cannot move what lies elsewhere.
bool is_plain_name(const fs::path& name) {
  return name.has_filename() && name == name.filename() && name != "." && name != "..";
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

// The names of the record in `output`; nullopt: there is no record of `experiment`.
std::optional<std::vector<std::string>> recorded_names(const fs::path& output,
                                                       const std::string& experiment) {
  std::error_code ignored;
  if (!fs::is_regular_file(output / kExperimentRecord, ignored)) return std::nullopt;
  std::ifstream file(output / kExperimentRecord);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("experiment", nlohmann::json()) != experiment)
    return std::nullopt;
  std::vector<std::string> names;
  for (const auto& name : json.value("writes", nlohmann::json::array()))
    if (name.is_string() && is_plain_name(name.get<std::string>())) names.push_back(name);
  return names;
}

}  // namespace

std::optional<std::string> make_room_for_experiment(const fs::path& output,
                                                    const std::string& experiment,
                                                    const std::vector<std::string>& names) {
  const auto record_there = recorded_names(output, experiment);
  std::vector<std::string> former = record_there.value_or(std::vector<std::string>());
  const bool moves = std::any_of(former.begin(), former.end(), [&output](const std::string& name) {
    return is_there(output / name);
  });
  // The record moves last, so that it names what a killed process has not moved.
  if (record_there) former.emplace_back(kExperimentRecord);
  std::vector<std::string> wanted = names;
  wanted.emplace_back(kExperimentRecord);
  for (const std::string& name : wanted) {
    if (!is_there(output / name) || std::find(former.begin(), former.end(), name) != former.end())
      continue;
    throw InvalidArgument((output / name).string() + " is there, and no former `lockstep " +
                          experiment +
                          "` has recorded it as its own; give another --output, or move it away");
  }
  const auto moved = moves ? move_former_run_aside(output, former) : std::nullopt;
  const nlohmann::ordered_json record{{"experiment", experiment}, {"writes", names}};
  write_file_aside(output / kExperimentRecord, record.dump(2) + "\n");
  return moved;
}

}  // namespace lockstep::inline v0::bench
