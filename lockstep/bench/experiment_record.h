// The record of an experiment in its output folder: the names there that it writes. A later
// experiment moves these aside, and nothing that others have put there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0::bench {

inline constexpr const char* kExperimentRecord = "experiment.json";

// Makes room in `output` for an experiment that writes `names` there: files and folders. Those of
// the former record move to `previous` (move_former_run_aside()); then the new record is written.
// Returns a line that says what was moved; nullopt: nothing.
// Requires: no other process writes there meanwhile.
// Throws: InvalidArgument, before anything is changed, where one of the names is there and no
// record has it; SystemError.
std::optional<std::string> make_room_for_experiment(const std::filesystem::path& output,
                                                    const std::string& experiment,
                                                    const std::vector<std::string>& names);

}  // namespace lockstep::inline v0::bench
