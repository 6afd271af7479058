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

namespace lockstep {
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

struct Challenge {
  std::exception_ptr server, client;
};

template <typename E>
bool is(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const E&) {
    return true;
  } catch (...) {
  }
  return false;
}

Challenge meet(const Secret& server_secret, std::string_view server_purpose,
               const Secret& client_secret, std::string_view client_purpose) {
  int fds[2];
  ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds);
  UniqueFd server(fds[0]), client(fds[1]);
  Challenge result;
  std::thread other([&] {
    try {
      authenticate_as_server(server.get(), server_secret, server_purpose, Deadline::seconds(10));
    } catch (...) {
      result.server = std::current_exception();
    }
    server.reset();
  });
  try {
    authenticate_as_client(client.get(), client_secret, client_purpose, Deadline::seconds(10));
  } catch (...) {
    result.client = std::current_exception();
  }
  other.join();
  return result;
}

TEST(ChallengeTest, TheSameSecretAndPurposeMeet) {
  const Secret secret = Secret::generate();
  const Challenge result = meet(secret, "store", secret, "store");
  EXPECT_FALSE(result.server);
  EXPECT_FALSE(result.client);
}

TEST(ChallengeTest, AnotherSecretOrPurposeIsRefusedOnBothSides) {
  const Secret secret = Secret::generate();
  for (const Challenge& result :
       {meet(secret, "store", Secret::generate(), "store"), meet(secret, "store", secret, "tcp")}) {
    EXPECT_TRUE(is<StoreError>(result.server));
    EXPECT_TRUE(is<StoreError>(result.client));
  }
}

TEST(ChallengeTest, ASilentPeerIsATimeOut) {
  int fds[2];
  ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds);
  const UniqueFd one(fds[0]), two(fds[1]);
  EXPECT_THROW(authenticate_as_server(one.get(), Secret::generate(), "x", Deadline::seconds(0.02)),
               Timeout);
  EXPECT_THROW(authenticate_as_client(two.get(), Secret::generate(), "x", Deadline::seconds(0.02)),
               Timeout);
}

TEST(ServerChallengeTest, ForeignBytesAreRefusedAsSoonAsTheyDiffer) {
  ServerChallenge challenge(Secret::generate(), "store");
  EXPECT_EQ(challenge.wanted(), 40u);
  EXPECT_EQ(challenge.feed("LKS"), "");
  EXPECT_EQ(challenge.wanted(), 37u);
  EXPECT_THROW(challenge.feed("x"), StoreError);
  EXPECT_THROW(ServerChallenge(Secret::generate(), "store").feed("GET / HTTP/1.1\r\n"), StoreError);
}

// Recording a client's proof does not help against the same server later: its nonce is new each
// time.
TEST(ServerChallengeTest, ARecordedProofIsWorthless) {
  const Secret secret = Secret::generate();
  const std::string hello = "LKSTP1\r\n" + std::string(32, 'n');
  ServerChallenge first(secret, "store"), second(secret, "store");
  const std::string nonce_one = first.feed(hello), nonce_two = second.feed(hello);
  EXPECT_NE(nonce_one, nonce_two);
  EXPECT_THROW(second.feed(std::string(32, 'p')), StoreError);
}

}  // namespace secret_test
}  // namespace lockstep
