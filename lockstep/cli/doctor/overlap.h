// OverlapReport: how much of a timeline's communication (timeline/timeline.h) was hidden.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/timeline/chrome_trace.h"
#include "lockstep/timeline/overlap.h"

namespace lockstep::inline v0::cli {

struct OverlapReport {
  std::string file;
  timeline::ReadTrace trace;  // without its events
  std::vector<timeline::RankOverlap> ranks;
};

// The timeline of a folder, its trace.json, or the file itself; nullopt where there is none.
// Throws: DataError that names the file and the error.
std::optional<OverlapReport> read_overlap(const std::filesystem::path& folder_or_file);

// A table, a bar for each rank, and what both say. The bars and sentences fit into `columns`. Pure.
std::string format_overlap(const OverlapReport& report, size_t columns = SIZE_MAX);
nlohmann::ordered_json json_of(const OverlapReport& report);

}  // namespace lockstep::inline v0::cli
