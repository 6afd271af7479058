// Where results will go: made and tried before the work that leads to them, so that hours of it do
// not end in a line about its output.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace lockstep {

// A folder for results. What this object made goes again with it as far as it is still empty: a
// command that fails before it has written anything leaves nothing behind. Of several ranks only
// rank 0 makes one. Not copyable.
class OutputFolder {
 public:
  OutputFolder() = default;  // none
  // Makes `path` and its parents where they are missing, and sees that a file of a megabyte can be
  // written there. Throws InvalidArgument that names what is in the way, having left nothing.
  explicit OutputFolder(const std::filesystem::path& path);
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&& other) noexcept;
  ~OutputFolder();

 private:
  void remove_empty() noexcept;

  std::vector<std::filesystem::path> made_;  // absolute, outermost first
};

// As the name of a file for results: stdout.
inline constexpr const char* kStdoutName = "-";

// Throws InvalidArgument unless a file can be written at `path`: its folder must be there, and what
// has its name must be an ordinary file, which stays as it is. Nothing if `path` is empty or stdout.
void check_output_file(const std::filesystem::path& path);
// The whole of `text` as that file, or to stdout. Nothing if `path` is empty. Throws SystemError.
void write_output_file(const std::filesystem::path& path, std::string_view text);
// What a command prints for people: to stdout, or to stderr where a result goes there, which is then alone on it.
void write_for_people(std::string_view text, std::initializer_list<std::filesystem::path> results);

}  // namespace lockstep
