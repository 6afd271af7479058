#include "lockstep/core/secret.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {
namespace secret_test {

using testing::HasSubstr;

EnvLookup lookup(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(std::string(name));
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
}

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// The values of FIPS 180-2 and RFC 4231.
TEST(Crypto, KnownAnswers) {
  EXPECT_EQ(to_hex(view(sha256("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(view(hmac_sha256("Jefe", "what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_TRUE(equal(sha256("a"), sha256("a")));
  EXPECT_FALSE(equal(sha256("a"), sha256("b")));
}

TEST(Secret, GeneratedOnesDiffer) {
  EXPECT_NE(Secret::generate().text(), Secret::generate().text());
  EXPECT_GE(Secret::generate().text().size(), 64u);
  EXPECT_THROW(Secret::from_text(""), InvalidArgument);
}

TEST(Secret, FromTheEnvironmentInOrder) {
  EXPECT_FALSE(Secret::from_env(lookup({})));
  EXPECT_EQ(Secret::from_env(lookup({{"LOCKSTEP_SECRET", "s"}}))->text(), "s");

  const UniqueFd memory(::memfd_create("secret", MFD_CLOEXEC));
  ASSERT_EQ(::write(memory.get(), "from fd\n", 8), 8);
  const std::string fd = std::to_string(memory.get());
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_EQ(
        Secret::from_env(lookup({{"LOCKSTEP_SECRET", "s"}, {"LOCKSTEP_SECRET_FD", fd}}))->text(),
        "from fd");
  }
  EXPECT_THROW(Secret::from_env(lookup({{"LOCKSTEP_SECRET_FD", "999999"}})), InvalidArgument);
}

TEST(Secret, AFileMustBeItsOwnersAlone) {
  std::string name = std::filesystem::temp_directory_path() / "lockstep-secret-XXXXXX";
  const UniqueFd file(::mkstemp(name.data()));
  ASSERT_TRUE(file);
  ASSERT_EQ(::write(file.get(), "in a file\n", 10), 10);
  const EnvLookup env = lookup({{"LOCKSTEP_SECRET_FILE", name}});
  EXPECT_EQ(Secret::from_env(env)->text(), "in a file");
  ::chmod(name.c_str(), 0640);
  try {
    Secret::from_env(env);
    ADD_FAILURE() << "a readable file was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("chmod 600 " + name));
  }
  std::filesystem::remove(name);
  EXPECT_THROW(Secret::from_env(env), InvalidArgument);
}

}  // namespace secret_test
}  // namespace lockstep::inline v0
