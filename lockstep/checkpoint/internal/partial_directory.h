// A checkpoint's directory while it is written: beside its place, and exchanged with it once it is
// whole. Not a public header.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::inline v0::internal {

// A unique name for an attempt to write.
std::string new_attempt();

// The suffix under which put_in_place() has the former one for a moment.
inline constexpr const char* kPrevious = ".previous";

// "PATH.partial" and the like; "dir/" counts as "dir".
std::filesystem::path beside(const std::filesystem::path& path, const char* suffix);
// Moves the directory or link `fresh` to `path`, in one step where the file system can. Afterwards
// `fresh` is the former content, or nothing. Where the file system cannot, there is a moment with
// the former one under "PATH.previous", which is then removed. Throws SystemError; then `path` is
// unchanged.
void put_in_place(const std::filesystem::path& fresh, const std::filesystem::path& path);

// The directory of an attempt's files until they are whole: PATH.partial/ATTEMPT. A rank that still
// writes for an abandoned attempt finds its directory gone, and does not interfere with another
// attempt.
std::filesystem::path attempt_directory(const std::filesystem::path& path,
                                        const std::string& attempt);

// One object per path at a time. Throws SystemError that names the path.
class PartialDirectory {
 public:
  // Removes leftovers, and makes the directory.
  PartialDirectory(std::filesystem::path path, const std::string& attempt);
  // Removes the directory, unless it was published.
  ~PartialDirectory();
  PartialDirectory(const PartialDirectory&) = delete;
  PartialDirectory& operator=(const PartialDirectory&) = delete;

  const std::filesystem::path& directory() const { return directory_; }
  // Moves it to the place of the former one, in one step where the file system can, and removes
  // that one.
  void publish();

 private:
  std::filesystem::path path_;
  std::filesystem::path directory_;
};

}  // namespace lockstep::inline v0::internal
