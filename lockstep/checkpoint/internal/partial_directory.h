// A checkpoint's directory under way: beside its place, and exchanged with it once it is whole. Not
// a public header.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::internal {

// A word that no other attempt to write has.
std::string new_attempt();

// Where put_in_place() has the former one for a moment: PATH with this behind it.
inline constexpr const char* kPrevious = ".previous";

// "PATH.partial" and the like; "dir/" is "dir".
std::filesystem::path beside(const std::filesystem::path& path, const char* suffix);
// Puts the directory or link `fresh` in the place of `path`, in one step where the file system can. Afterwards `fresh`
// is what was there, or nothing. Where it cannot, there is a moment with the former one under "PATH.previous"; nothing
// of that is left. Throws SystemError; then `path` is as it was.
void put_in_place(const std::filesystem::path& fresh, const std::filesystem::path& path);

// Where the files of an attempt lie until they are whole: PATH.partial/ATTEMPT. Whoever still writes
// for an attempt that was given up finds its directory gone, and does not come between another's.
std::filesystem::path attempt_directory(const std::filesystem::path& path,
                                        const std::string& attempt);

// One a path at a time. Throws SystemError that names the path.
class PartialDirectory {
 public:
  // Removes what others have left, and makes the directory.
  PartialDirectory(std::filesystem::path path, const std::string& attempt);
  // Removes the directory, unless it was published.
  ~PartialDirectory();
  PartialDirectory(const PartialDirectory&) = delete;
  PartialDirectory& operator=(const PartialDirectory&) = delete;

  const std::filesystem::path& directory() const { return directory_; }
  // Puts it in the place of the former one, in one step where the file system can, and removes that.
  void publish();

 private:
  std::filesystem::path path_;
  std::filesystem::path directory_;
};

}  // namespace lockstep::internal
