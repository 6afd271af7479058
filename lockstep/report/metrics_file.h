// Reads what a training run has logged: its metrics.jsonl.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep::inline v0 {

// The objects of a metrics.jsonl, in order.
// Throws: DataError that names the file and the line.
std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path);

// How long a checkpoint stopped the training, in seconds: the median over the logs of a run that have "checkpoint_s".
// `run`: the run's folder, or its metrics.jsonl.
// Throws: DataError, also where no log has one.
double checkpoint_stall_of(const std::filesystem::path& run);

}  // namespace lockstep::inline v0
