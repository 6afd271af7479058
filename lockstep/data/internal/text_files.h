// Finds the parts of a folder of texts, for all code that reads such folders.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0::data {

// PART with the first of the endings (".jsonl") that exists.
std::optional<std::filesystem::path> part_file(const std::filesystem::path& directory,
                                               std::string_view part,
                                               std::span<const std::string_view> endings);

// The dev set's file, under any of its usual names: dev, validation, valid, val, eval.
std::optional<std::filesystem::path> dev_file(const std::filesystem::path& directory,
                                              std::span<const std::string_view> endings);

// Names of the files that look like texts of a data set, by their ending or, like train-2.txt, by
// their beginning, and are not in `read`; sorted.
std::vector<std::string> unread_files(const std::filesystem::path& directory,
                                      const std::vector<std::filesystem::path>& read);

}  // namespace lockstep::inline v0::data
