#include "lockstep/report/jsonl.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::jsonl_test {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(JsonlWriter, AppendsWholeLinesAndGoesBack) {
  const auto path =
      std::filesystem::temp_directory_path() / ("lockstep-jsonl-" + std::to_string(::getpid()));
  {
    JsonlWriter writer(path, JsonlWriter::Mode::kReplace);
    writer.write({{"step", 1}, {"loss", 0.5}});
    EXPECT_EQ(read(path), "{\"step\":1,\"loss\":0.5}\n");
  }
  JsonlWriter writer(path, JsonlWriter::Mode::kAppend);
  const int64_t size = writer.size();
  writer.write({{"text", "\xff"}});
  writer.truncate(size);
  writer.truncate(size + 100);  // never makes it longer
  writer.write({{"step", 2}});
  EXPECT_EQ(read(path), "{\"step\":1,\"loss\":0.5}\n{\"step\":2}\n");
  std::filesystem::remove(path);
  EXPECT_THROW(JsonlWriter("/nonexistent/x", JsonlWriter::Mode::kAppend), SystemError);
}

}  // namespace lockstep::inline v0::jsonl_test
