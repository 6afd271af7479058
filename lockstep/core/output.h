// The destinations of results: made and tested before the work that leads to them, so that hours of
// it do not end in an error about its output.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// A folder for results. The folders that this object made are removed with it as far as they are
// still empty: a command that fails before it has written anything leaves nothing behind. Of
// several ranks only rank 0 makes one. Not copyable.
class LOCKSTEP_API OutputFolder {
 public:
  OutputFolder() = default;  // no folder
  // Makes `path` and its missing parents, and tests that a file of a megabyte can be written there.
  // Throws: InvalidArgument that names the obstacle, and then leaves nothing.
  explicit OutputFolder(const std::filesystem::path& path);
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&& other) noexcept;
  ~OutputFolder();

 private:
  void remove_empty() noexcept;

  std::vector<std::filesystem::path> made_;  // absolute, outermost first
};

// The file name that means stdout.
inline constexpr const char* kStdoutName = "-";

// Throws InvalidArgument unless a file can be written at `path`: its folder must exist, and an
// existing file must be a regular one, which stays unchanged. Does nothing if `path` is empty or
// stdout.
LOCKSTEP_API void check_output_file(const std::filesystem::path& path);
// Writes `text` as that file, or to stdout. Does nothing if `path` is empty.
// Throws: SystemError.
LOCKSTEP_API void write_output_file(const std::filesystem::path& path, std::string_view text);
// Prints a command's output for people: to stdout, or to stderr where a result goes to stdout,
// which must then contain nothing else.
LOCKSTEP_API void write_for_people(std::string_view text,
                                   std::initializer_list<std::filesystem::path> results);

}  // namespace lockstep::inline v0
