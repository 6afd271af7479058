#include "lockstep/wire/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0::wire {
namespace listener_test {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

Deadline soon() {
  return Deadline::seconds(60);
}

class ListenerTest : public testing::Test {
 protected:
  void listen(int doors = 1) {
    std::vector<UniqueFd> all;
    for (int i = 0; i < doors; ++i) all.push_back(listen_tcp({"127.0.0.1", 0}));
    service_.where = "test";
    service_.purpose = "testing";
    service_.says = [this](const std::string& line) { said_.push_back(line); };
    listener_.emplace(std::move(all), secret_, service_);
  }
  UniqueFd connect(size_t door = 0) {
    return connect_tcp(local_address(listener_->door(door)), soon());
  }
  // Waits for a connection, as a loop does that has nothing else to do.
  Listener::Connection next() {
    while (true) {
      if (auto connection = listener_->next()) return std::move(*connection);
      wait_ready(listener_->fd(), POLLIN, soon(), "a connection");
    }
  }
  // Serves until this is so.
  template <typename So>
  void until(So so) {
    const Deadline end = soon();
    while (!so()) {
      ASSERT_FALSE(end.expired());
      EXPECT_FALSE(listener_->next());
      pollfd now{listener_->fd(), POLLIN, 0};
      ::poll(&now, 1, 10);
    }
  }
  static bool closed(const UniqueFd& fd) {
    char byte = 0;
    const ssize_t n = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno == ECONNRESET);
  }
  std::thread proves(const UniqueFd& fd) {
    return std::thread([this, &fd] {
      authenticate_as_client(fd.get(), secret_, "testing", soon());
      ++proofs_;
    });
  }

  const Secret secret_ = Secret::generate();
  Listener::Service service_;
  std::optional<Listener> listener_;
  std::vector<std::string> said_;
  std::atomic<int> proofs_{0};
};

TEST_F(ListenerTest, GivesOutThoseThatHaveProvedTheSecret) {
  listen(2);
  const UniqueFd silent = connect(), client = connect(1);
  std::thread proof = proves(client);
  const Listener::Connection connection = next();
  proof.join();
  EXPECT_EQ(connection.door, 1U);
  EXPECT_EQ(connection.peer, local_address(client.get()).to_string());
  EXPECT_EQ(listener_->unauthenticated(), 1U) << "the silent one, which delays no other";
  EXPECT_FALSE(listener_->next());
  // What follows the challenge is for the user of the connection.
  write_exact(client.get(), "x", 1, soon());
  char byte = 0;
  read_exact(connection.fd.get(), &byte, 1, soon());
  EXPECT_EQ(byte, 'x');
  EXPECT_TRUE(said_.empty());
}

// Two prove the secret at once; a caller takes one each time that the descriptor is readable.
TEST_F(ListenerTest, StaysReadableWhileAConnectionIsLeft) {
  listen();
  std::vector<UniqueFd> clients;
  std::vector<ClientChallenge> challenges;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(connect());
    challenges.emplace_back(secret_, "testing");
    const std::string hello = challenges.back().hello();
    write_exact(clients.back().get(), hello.data(), hello.size(), soon());
  }
  std::vector<std::string> proofs;
  for (size_t i = 0; i < clients.size(); ++i) {
    pollfd answer{clients[i].get(), POLLIN, 0};
    until([&] { return ::poll(&answer, 1, 0) > 0; });
    std::string bytes(challenges[i].wanted(), '\0');
    read_exact(clients[i].get(), bytes.data(), bytes.size(), soon());
    proofs.push_back(challenges[i].feed(bytes));
  }
  for (size_t i = 0; i < clients.size(); ++i)
    write_exact(clients[i].get(), proofs[i].data(), proofs[i].size(), soon());
  for (int i = 0; i < 2; ++i) {
    std::optional<Listener::Connection> connection;
    while (!connection) {
      wait_ready(listener_->fd(), POLLIN, soon(), "a connection");
      connection = listener_->next();
    }
  }
  EXPECT_EQ(listener_->unauthenticated(), 0U);
}

TEST_F(ListenerTest, BytesThatFollowTheProofAtOnceAreLeftToTheUser) {
  listen();
  const UniqueFd client = connect();
  std::thread proof([&] {
    ClientChallenge challenge(secret_, "testing");
    std::string message = challenge.hello();
    while (!challenge.done()) {
      write_exact(client.get(), message.data(), message.size(), soon());
      std::string bytes(challenge.wanted(), '\0');
      read_exact(client.get(), bytes.data(), bytes.size(), soon());
      message = challenge.feed(bytes) + "behind it";
    }
  });
  const Listener::Connection connection = next();
  proof.join();
  std::string text(9, '\0');
  read_exact(connection.fd.get(), text.data(), text.size(), soon());
  EXPECT_EQ(text, "behind it");
}

TEST_F(ListenerTest, RefusesOtherSecretsAndOtherProtocols) {
  listen();
  const UniqueFd browser = connect(), stranger = connect(), left = connect();
  write_exact(browser.get(), "GET / HTTP/1.1\r\n", 16, soon());
  ::shutdown(left.get(), SHUT_RDWR);
  std::string what;
  std::thread wrong([&] {
    try {
      authenticate_as_client(stranger.get(), Secret::generate(), "testing", soon());
    } catch (const StoreError& error) {
      what = error.what();
    }
  });
  until([&] { return listener_->refused() == 2 && listener_->unauthenticated() == 0; });
  wrong.join();
  EXPECT_THAT(what, HasSubstr("refused this process's secret"));
  EXPECT_TRUE(closed(browser));
  EXPECT_EQ(said_.size(), 2U) << "a connection that was merely closed is no refusal";
  for (const std::string& line : said_)
    EXPECT_THAT(line, HasSubstr("closed the connection from 127.0.0.1:"));
}

TEST_F(ListenerTest, AProofForAnotherServiceIsWorthless) {
  listen();
  const UniqueFd client = connect();
  std::thread proof([&] {
    EXPECT_THROW(authenticate_as_client(client.get(), secret_, "store", soon()), StoreError);
  });
  until([&] { return listener_->refused() == 1; });
  proof.join();
}

TEST_F(ListenerTest, ASlowPeerIsClosedInTime) {
  service_.time = 20ms;
  listen();
  const Deadline begun = Deadline::after({});
  const UniqueFd silent = connect();
  until([&] { return said_.size() == 1; });
  EXPECT_GE(begun.elapsed_seconds(), 0.02);
  EXPECT_TRUE(closed(silent));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("in time")));
  EXPECT_EQ(listener_->refused(), 0U);
}

TEST_F(ListenerTest, TheOldestGivesWayToOneTooMany) {
  service_.most = 2;
  listen();
  const UniqueFd first = connect();
  until([&] { return listener_->unauthenticated() == 1; });
  const UniqueFd second = connect(), third = connect();
  until([&] { return closed(first); });
  EXPECT_EQ(listener_->unauthenticated(), 2U);
  EXPECT_FALSE(closed(second));
}

// Many connections from one address do not displace one from another address, however slow that is.
TEST_F(ListenerTest, AStormPushesOutNoneFromElsewhere) {
  service_.most = 8;
  listen();
  const UniqueFd slow = connect();
  std::vector<UniqueFd> storm;
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(local_address(listener_->door()).port);
  for (int i = 0; i < 100; ++i) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    storm.push_back(std::move(fd));
  }
  until([&] { return listener_->unauthenticated() == 8; });
  std::thread proof = proves(slow);
  EXPECT_EQ(next().peer, local_address(slow.get()).to_string());
  proof.join();
}

TEST_F(ListenerTest, WhoIsNotAdmittedIsClosed) {
  int asked = 0;
  service_.admits = [&](int) { return ++asked > 1; };
  listen();
  const UniqueFd client = connect();
  until([&] { return closed(client); });
  EXPECT_EQ(listener_->unauthenticated(), 0U);
}

// A byte, which is answered.
class OneByte final : public Greeting {
 public:
  explicit OneByte(int fd) : fd_(fd) {}
  bool advance() override {
    if (::recv(fd_, &said, 1, MSG_DONTWAIT) != 1) return false;
    if (said == 'x') throw StoreError("it said x");
    return ::send(fd_, &said, 1, MSG_NOSIGNAL) == 1;
  }
  char said = 0;

 private:
  const int fd_;
};

TEST_F(ListenerTest, AGreetingFollowsTheProof) {
  service_.most = 1;
  service_.greets = [](int fd) { return std::make_unique<OneByte>(fd); };
  listen();
  const UniqueFd rude = connect();
  std::thread first = proves(rude);
  until([&] { return proofs_ == 1; });
  first.join();
  const UniqueFd polite = connect();
  std::thread second = proves(polite);
  until([&] { return proofs_ == 2; });
  second.join();
  EXPECT_EQ(listener_->unauthenticated(), 0U) << "who has proved the secret gives way to no other";
  write_exact(rude.get(), "x", 1, soon());
  until([&] { return closed(rude); });
  EXPECT_THAT(said_, ElementsAre(HasSubstr("it said x")));
  EXPECT_EQ(listener_->refused(), 1U);
  write_exact(polite.get(), "y", 1, soon());
  const Listener::Connection connection = next();
  EXPECT_EQ(static_cast<OneByte&>(*connection.greeting).said, 'y');
}

// Without a descriptor a peer that has proved nothing gives way; where there is none, the
// connection waits.
TEST_F(ListenerTest, GoesOnOnceThereIsADescriptor) {
  listen();
  const UniqueFd silent = connect();
  until([&] { return listener_->unauthenticated() == 1; });
  const UniqueFd next_one = connect();
  {
    const FewDescriptors none(0);
    until([&] { return closed(silent); });
    EXPECT_EQ(listener_->unauthenticated(), 1U) << "the one that came later";
    EXPECT_EQ(listener_->starved(), 0);
  }
  const UniqueFd client = connect();
  std::thread proof = proves(client);
  const Listener::Connection connection = next();
  proof.join();
  EXPECT_TRUE(connection.fd);
}

TEST_F(ListenerTest, AConnectionWaitsWhileThereIsNoDescriptor) {
  listen();
  const UniqueFd client = connect();
  testing::internal::CaptureStderr();
  {
    const FewDescriptors none(0);
    until([&] { return listener_->starved() == EMFILE; });
  }
  std::thread proof = proves(client);
  const Listener::Connection connection = next();
  proof.join();
  EXPECT_EQ(listener_->starved(), 0);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("test: a connection waits"));
}

}  // namespace listener_test
}  // namespace lockstep::inline v0::wire
