// Names: who gets one, who is turned away, and that nothing is left.
#include "lockstep/insitu/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/core/unix_socket.h"
#include "lockstep/insitu/ring_test_support.h"

namespace lockstep::inline v0::insitu::ring_test {

using ::testing::HasSubstr;

UniqueFd listening(const std::string& name) {
  UniqueFd fd = unix_socket();
  const AbstractAddress address(name);
  EXPECT_EQ(::bind(fd.get(), address.get(), address.size), 0);
  EXPECT_EQ(::listen(fd.get(), 8), 0);
  return fd;
}

bool name_is_there(const std::string& name) {
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (line.ends_with("@" + name)) return true;
  }
  return false;
}

TEST(Meeting, NothingIsLeftOfARing) {
  const std::string name = own_name("left");
  {
    const Producer producer = Producer::open(name, numbers_schema());
    EXPECT_TRUE(name_is_there(socket_name(name)));
  }
  EXPECT_FALSE(name_is_there(socket_name(name)));
}

TEST(Meeting, MembersThatComeTogetherMeetInOneRing) {
  for (int round = 0; round < 20; ++round) {
    const std::string name = own_name("together" + std::to_string(round));
    std::vector<std::thread> threads;
    std::vector<std::optional<Producer>> producers(4);
    for (auto& producer : producers) {
      threads.emplace_back([&] {
        producer = Producer::open(name, numbers_schema(), {.slots = 8}, soon());
        EXPECT_TRUE(push_numbers(*producer, 1, 1, now()));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(Consumer::open(name, soon()).take(4, soon()).size(), 4u);
  }
}

// A socket whose holder never accepts: its process is stopped.
TEST(Meeting, AStaleNameIsATimeout) {
  const std::string name = own_name("stale");
  const UniqueFd holder = listening(socket_name(name));
  try {
    Producer::open(name, numbers_schema(), {}, Deadline::seconds(0.1));
    FAIL() << "no Timeout";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("stopped"));
  }
  EXPECT_THROW(Consumer::open(name, Deadline::seconds(0.1)), Timeout);
}

TEST(Meeting, ANameWithoutAListenerIsATimeout) {
  const std::string name = own_name("bound");
  const UniqueFd holder = unix_socket();
  const AbstractAddress address(socket_name(name));
  ASSERT_EQ(::bind(holder.get(), address.get(), address.size), 0);
  EXPECT_THROW(Producer::open(name, numbers_schema(), {}, Deadline::seconds(0.1)), Timeout);
}

TEST(Meeting, AServerThatIsNoRingIsNamed) {
  const std::string name = own_name("other");
  const UniqueFd holder = listening(socket_name(name));
  std::thread server([&] {
    wait_ready(holder.get(), POLLIN, soon(), "a visitor");
    const UniqueFd visitor(::accept4(holder.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(::send(visitor.get(), "hello", 5, MSG_NOSIGNAL), 5);
  });
  EXPECT_THROW(Consumer::open(name, soon()), InvalidArgument);
  server.join();
}

// Credentials are a thread's for the kernel: one thread is another user for a while.
class OtherUser {
 public:
  OtherUser() : there_(::geteuid() == 0 && ::syscall(SYS_setresuid, -1, 65534, -1) == 0) {}
  ~OtherUser() {
    if (there_) ::syscall(SYS_setresuid, -1, 0, -1);
  }
  bool there() const { return there_; }

 private:
  bool there_;
};

TEST(Meeting, AnotherUsersNameIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string name = own_name("squatter");
  const std::string taken = socket_name(name);
  UniqueFd holder;
  std::thread squatter([&] {
    const OtherUser other;
    ASSERT_TRUE(other.there());
    holder = listening(taken);
  });
  squatter.join();
  try {
    Consumer::open(name, soon());
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("user 65534"));
  }
  EXPECT_THROW(Producer::open(name, numbers_schema()), InvalidArgument);
}

TEST(Meeting, AnotherUserGetsNoMemory) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string name = own_name("private");
  const Producer producer = Producer::open(name, numbers_schema());
  const AbstractAddress address(socket_name(name));
  std::thread stranger([&] {
    const OtherUser other;
    ASSERT_TRUE(other.there());
    const UniqueFd fd = unix_socket();
    ASSERT_EQ(::connect(fd.get(), address.get(), address.size), 0);
    EXPECT_THROW(receive_fds(fd.get(), 2, soon()), PeerLost);
  });
  stranger.join();
}

}  // namespace lockstep::inline v0::insitu::ring_test
