#include "lockstep/wire/challenge.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <exception>
#include <string>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::wire {
namespace challenge_test {

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

// The server may be out of resources, or have died: it has said nothing about the secret.
TEST(ChallengeTest, AServerThatClosesInsteadOfAnsweringHasRefusedNobody) {
  const Secret secret = Secret::generate();
  int fds[2];
  ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds);
  UniqueFd server(fds[0]);
  const UniqueFd client(fds[1]);
  std::thread other([&] {
    ServerChallenge challenge(secret, "store");
    std::string hello(challenge.wanted(), '\0');
    read_exact(server.get(), hello.data(), hello.size(), Deadline::seconds(10));
    challenge.answer(server.get(), hello);
    std::string proof(challenge.wanted(), '\0');
    read_exact(server.get(), proof.data(), proof.size(), Deadline::seconds(10));
    server.reset();
  });
  EXPECT_THROW(authenticate_as_client(client.get(), secret, "store", Deadline::seconds(10)),
               PeerLost);
  other.join();
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

}  // namespace challenge_test
}  // namespace lockstep::inline v0::wire
