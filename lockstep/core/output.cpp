#include "lockstep/core/output.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

constexpr size_t kRoom = 1 << 20;

// Not access(2): only writing detects read-only file systems, full ones, and root. An AsideFile
// that is not committed leaves nothing.
void try_to_write(const fs::path& path) {
  AsideFile file(path);
  file.allocate(kRoom);
  file.write("?");
}

// Absolute, without a trailing '/'.
fs::path plain(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

}  // namespace

OutputFolder::OutputFolder(const fs::path& path) : OutputFolder() {
  const auto refuse = [&path](const std::string& what) {
    throw InvalidArgument("output " + path.string() + " cannot be " + what);
  };
  std::error_code error;
  std::vector<fs::path> missing;  // innermost first
  for (fs::path at = plain(path); !fs::exists(at, error) && !error && at.has_relative_path();
       at = at.parent_path())
    missing.push_back(at);
  std::reverse(missing.begin(), missing.end());
  for (size_t i = 0; i < missing.size() && !error; ++i) {
    if (fs::create_directory(missing[i], error)) made_.push_back(missing[i]);
  }
  if (!error && !fs::is_directory(path, error) && !error)
    error = std::make_error_code(std::errc::not_a_directory);
  if (error) refuse("made (" + error.message() + "); give a directory that can be written");
  try {
    try_to_write(path / "probe");
  } catch (const SystemError& failure) {
    refuse(std::string("written (") + failure.what() + "); give another directory");
  }
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept : made_(std::exchange(other.made_, {})) {}

OutputFolder& OutputFolder::operator=(OutputFolder&& other) noexcept {
  if (this != &other) {
    remove_empty();
    made_ = std::exchange(other.made_, {});
  }
  return *this;
}

OutputFolder::~OutputFolder() {
  remove_empty();
}

void OutputFolder::remove_empty() noexcept {
  // rmdir(2) refuses a folder that is not empty, and anything that is no folder any more.
  while (!made_.empty() && ::rmdir(made_.back().c_str()) == 0) made_.pop_back();
  made_.clear();
}

void check_output_file(const fs::path& path) {
  if (path.empty() || path == kStdoutName) return;
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    throw InvalidArgument(path.string() + " is a directory; give a file");
  // Other kinds of files, such as a device, would be replaced, too.
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored))
    throw InvalidArgument(path.string() + " is no ordinary file; give another");
  try {
    try_to_write(path);
  } catch (const SystemError& error) {
    throw InvalidArgument(std::string(error.what()) + "; give another file");
  }
}

void write_output_file(const fs::path& path, std::string_view text) {
  if (path == kStdoutName)
    write_stdout(text);
  else if (!path.empty())
    write_file_aside(path, text);
}

void write_for_people(std::string_view text, std::initializer_list<fs::path> results) {
  if (std::find(results.begin(), results.end(), kStdoutName) == results.end())
    write_stdout(text);
  else
    write_all(STDERR_FILENO, text);
}

}  // namespace lockstep::inline v0
