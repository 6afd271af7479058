// JSON lines: a file with one JSON object per line, such as metrics.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/core/export.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

// Appends lines, each with one write(2): a reader sees only whole lines at any time, and a killed
// run keeps the lines it wrote. A file has one writer.
// Throws: SystemError that names the path.
class LOCKSTEP_API JsonlWriter {
 public:
  // The treatment of a file that exists: it is replaced, or lines are appended.
  enum class Mode { kReplace, kAppend };
  JsonlWriter(const std::filesystem::path& path, Mode mode);

  void write(const nlohmann::ordered_json& object);  // one line
  // The file's length now; truncate() goes back to an earlier one and drops the lines after it.
  int64_t size() const;
  void truncate(int64_t size);

 private:
  std::string path_;
  UniqueFd fd_;
};

}  // namespace lockstep::inline v0
