// A checkpoint's directory under way: beside its place, and exchanged with it once it is whole. Not
// a public header.
#pragma once

#include <filesystem>

namespace lockstep::internal {

// "PATH.partial" and the like; "dir/" is "dir".
std::filesystem::path beside(const std::filesystem::path& path, const char* suffix);
// Where the checkpoint is, or "PATH.previous", where it is in the one moment without it.
std::filesystem::path where_it_is(const std::filesystem::path& path);

// One a path at a time. Throws SystemError that names the path.
class PartialDirectory {
 public:
  // Removes what a killed writer has left, and makes the directory.
  explicit PartialDirectory(std::filesystem::path path);
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
