// JSON lines: a file of one JSON object a line, such as metrics.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Appends lines, each by one write(2), so that a reader sees whole lines at any time and a killed
// run keeps what it wrote. One writer a file. Throws SystemError that names the path.
class JsonlWriter {
 public:
  enum class Mode { kReplace, kAppend };
  JsonlWriter(const std::filesystem::path& path, Mode mode);

  void write(const nlohmann::ordered_json& object);
  // The file's length now, and back to a former one: what came after it is dropped.
  int64_t size() const;
  void truncate(int64_t size);

 private:
  std::string path_;
  UniqueFd fd_;
};

}  // namespace lockstep
