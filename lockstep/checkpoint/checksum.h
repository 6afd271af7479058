// XXH3-64 (Yann Collet, https://xxhash.com), the checksum of a checkpoint's files: it finds
// accidental damage, not tampering. `xxhsum -H3 FILE` prints the same number.
//
// A checkpoint directory holds its files' sums in checksums.json:
//
//   {"algorithm": "XXH3-64",
//    "files": {"model.safetensors": {"bytes": 4096, "xxh3": "0123456789abcdef"}, ...}}
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Size and checksum of a file.
struct FileSum {
  uint64_t bytes = 0;
  uint64_t xxh3 = 0;
  friend bool operator==(const FileSum&, const FileSum&) = default;
};

// Where a copy goes to: memory that is larger than the caches, or memory that was used just before and is again soon.
enum class CopyTo : uint8_t { kMemory, kCaches };

// The checksum of a file whose bytes arrive piece by piece.
// Thread-safety: one thread at a time.
class LOCKSTEP_API Checksum {
 public:
  Checksum();
  ~Checksum();
  void update(const void* data, size_t size);  // the next piece
  // update() and memcpy() of the same bytes to `to`, in one pass over memory: faster than memcpy()
  // alone for data that is larger than the caches.
  void copy(void* to, const void* data, size_t size, CopyTo to_where = CopyTo::kMemory);
  FileSum sum() const;  // of the bytes given so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// memcpy() that bypasses the caches, for large data that another thread or device reads next.
LOCKSTEP_API void copy_past_caches(void* to, const void* from, size_t size);

// The checksum of complete data.
LOCKSTEP_API FileSum checksum_of(const void* data, size_t size);

// 16 hexadecimal digits.
LOCKSTEP_API std::string checksum_text(uint64_t xxh3);

// checksums.json, by the names of files in the same directory. Reading throws a one-line
// CheckpointError that begins with `source`.
using FileSums = std::map<std::string, FileSum>;
// To and from the text of checksums.json.
LOCKSTEP_API std::string format_checksums(const FileSums& sums);
LOCKSTEP_API FileSums parse_checksums(std::string_view json, const std::string& source);

// The sum of one file, if it is known.
LOCKSTEP_API std::optional<FileSum> find_sum(const FileSums& sums, const std::string& name);

// Checks that the list, if there is one, has that file: otherwise the file may belong to another
// checkpoint that was put in place meanwhile.
// Throws: CheckpointError that names the directory and the file.
LOCKSTEP_API void check_listed(const FileSums& sums, const std::string& name,
                               const std::string& directory);

// Throws CheckpointError that begins with `file` unless the two are equal.
LOCKSTEP_API void check_sum(const FileSum& found, const FileSum& recorded, const std::string& file);

// True for the name of a file in the checkpoint's own directory: no '/', not hidden, printable.
LOCKSTEP_API bool is_plain_file_name(std::string_view name);

}  // namespace lockstep::inline v0
