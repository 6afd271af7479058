#include "lockstep/core/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/shared_memory.h"

namespace lockstep::inline v0 {
namespace unix_socket_test {

std::array<UniqueFd, 2> socket_pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

TEST(UnixSocket, HandsOverMemoryThatOutlivesItsMaker) {
  auto [left, right] = socket_pair();
  {
    const UniqueFd memory = make_shared_memory("test", 4096);
    std::memcpy(SharedMapping(memory.get(), 4096).data(), "words", 6);
    send_fds(left.get(), {memory.get()}, Deadline::seconds(60));
  }
  const auto fds = receive_fds(right.get(), 1, Deadline::seconds(60));
  ASSERT_EQ(fds.size(), 1u);
  EXPECT_TRUE(has_sealed_size(fds[0].get()));
  EXPECT_NE(::ftruncate(fds[0].get(), 0), 0);
  EXPECT_STREQ(reinterpret_cast<char*>(SharedMapping(fds[0].get(), 4096).data()), "words");
}

TEST(UnixSocket, TellsOfAnEndThatIsGoneAndOfAMessageWithoutDescriptors) {
  auto [left, right] = socket_pair();
  EXPECT_THROW(receive_fds(right.get(), 1, Deadline::seconds(0.01)), Timeout);
  ASSERT_EQ(::send(left.get(), "x", 1, 0), 1);
  EXPECT_THROW(receive_fds(right.get(), 1, Deadline::seconds(60)), StoreError);
  left.reset();
  EXPECT_THROW(receive_fds(right.get(), 1, Deadline::seconds(60)), PeerLost);
}

TEST(UnixSocket, KnowsTheOtherEndByTheKernelsWord) {
  const UniqueFd listener = unix_socket(), visitor = unix_socket();
  const AbstractAddress address("lockstep-unix-socket-test-" + std::to_string(::getpid()));
  ASSERT_EQ(::bind(listener.get(), address.get(), address.size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::connect(visitor.get(), address.get(), address.size), 0);
  EXPECT_EQ(unix_peer(visitor.get()).process, ::getpid());
  EXPECT_EQ(unix_peer(visitor.get()).user, ::geteuid());
}

TEST(SharedMemory, IsPopulatedOnceAndWritten) {
  const UniqueFd memory = make_shared_memory("test", 1 << 20);
  const SharedMapping one(memory.get(), 1 << 20), other(memory.get(), 1 << 20);
  one.populate();
  one.data()[(1 << 20) - 1] = std::byte{7};
  EXPECT_EQ(other.data()[(1 << 20) - 1], std::byte{7});
  EXPECT_EQ(other.data()[0], std::byte{0});
}

}  // namespace unix_socket_test
}  // namespace lockstep::inline v0
