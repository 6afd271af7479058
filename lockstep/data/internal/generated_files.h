// The files of a generated data set: made once, by one process at a time, and never in place of
// other files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace lockstep::inline v0::data {

inline constexpr int64_t kMostGenerated = 10'000'000;  // samples

struct GeneratedFiles {
  std::string record;  // the file that says how the others were made, such as digits.txt
  // Its first line, with '\n': it has a version, which must rise whenever the same options give
  // other bytes.
  std::string heading;
  std::string options;             // its further lines
  std::string ours;                // the beginning of records whose files may be replaced
  std::function<bool()> complete;  // all files are there, of the right size
  std::function<void()> write;     // makes them
  std::function<bool(const std::string& name)> foreign;  // the file belongs to a data set
};

// Makes `directory` (and its parents) and the files where needed. Returns false, having changed
// nothing, if they exist. Throws InvalidArgument if files of another data set are in the way;
// SystemError; Timeout if another process holds the directory for more than a minute.
bool generate_files(const std::filesystem::path& directory, const GeneratedFiles& files);

// Throws InvalidArgument unless 1..kMostGenerated.
void check_generated_count(const std::string& what, int64_t count);

}  // namespace lockstep::inline v0::data
