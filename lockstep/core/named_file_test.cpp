#include "lockstep/core/named_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/secret.h"

namespace lockstep::inline v0 {
namespace named_file_test {

using testing::HasSubstr;

std::string refusal_of(const std::filesystem::path& path) {
  try {
    read_named_file(path);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(NamedFile, AnOrdinaryFileIsReadWhole) {
  const TestDirectory folder;
  const std::string text = std::string(200'000, 'x') + '\0' + "end";
  EXPECT_EQ(read_named_file(folder.write("file", text)), text);
  EXPECT_EQ(read_named_file(folder.write("empty", "")), "");
}

// Opening a FIFO without a writer would block forever.
TEST(NamedFile, AnythingElseIsRefusedAtOnce) {
  const TestDirectory folder;
  const auto fifo = folder / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(refusal_of(fifo),
            "cannot read " + fifo.string() + ": it is no ordinary file; give one");
  EXPECT_THAT(refusal_of("/dev/zero"), HasSubstr("it is no ordinary file"));
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("it is a directory; give a file"));
  EXPECT_THAT(refusal_of(folder / "none"), HasSubstr("none: No such file"));
  const EnvLookup env = [&](std::string_view name) -> std::optional<std::string> {
    if (name == "LOCKSTEP_SECRET_FILE") return fifo.string();
    return std::nullopt;
  };
  EXPECT_THROW(Secret::from_env(env), InvalidArgument);
}

}  // namespace named_file_test
}  // namespace lockstep::inline v0
