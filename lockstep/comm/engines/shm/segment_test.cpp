// Ranks as threads that meet at rank 0's socket.
#include "lockstep/comm/engines/shm/segment.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/engines/shm/door.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/unix_socket.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::inline v0::shm {
namespace segment_test {

Deadline soon() {
  return Deadline::seconds(60);
}

UniqueFd connected(const std::string& door) {
  UniqueFd fd = unix_socket();
  const AbstractAddress address(door);
  while (::connect(fd.get(), address.get(), address.size) != 0 && errno == EAGAIN)
    std::this_thread::yield();
  return fd;
}

// Any process of the user may connect, and send nothing, or invalid bytes.
TEST(Segment, StrangersHoldUpNobody) {
  HashStore store;
  const auto join = [&store](int rank) {
    return std::async(std::launch::async, [&store, rank] {
      return Segment(
                 store, rank, 3, 4096,
                 [](std::byte* memory, void*) { std::memset(memory, 7, 4096); }, nullptr, soon())
          .memory()[4095];
    });
  };
  auto first = join(0);
  const std::string door = store.get("door", soon());
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(connected(door));  // more than are kept
  auto second = join(1);
  strangers.push_back(connected(door));
  EXPECT_EQ(::send(strangers.back().get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
  auto third = join(2);
  for (auto* rank : {&first, &second, &third}) EXPECT_EQ(rank->get(), std::byte{7});
}

// Rank 0 is stopped, and its queue is full.
TEST(Segment, ADoorThatLetsNobodyInIsLeftAtTheDeadline) {
  HashStore store;
  Door door(Secret::generate(), 1);
  store.set("door", door.name());
  store.set("secret", Secret::generate().text());
  std::vector<UniqueFd> queue;
  const AbstractAddress address(door.name());
  do {
    queue.push_back(unix_socket());
  } while (::connect(queue.back().get(), address.get(), address.size) == 0);
  EXPECT_THROW(Segment(store, 1, 2, 4096, nullptr, nullptr, Deadline::seconds(0.2)), Timeout);
}

TEST(Segment, WhoDoesNotComeIsNamed) {
  HashStore store;
  auto first = std::async(std::launch::async, [&store] {
    Segment(store, 0, 2, 4096, [](std::byte*, void*) {}, nullptr, Deadline::seconds(0.3));
  });
  const UniqueFd stranger = connected(store.get("door", soon()));
  try {
    first.get();
    FAIL() << "nobody came";
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  }
}

}  // namespace segment_test
}  // namespace lockstep::inline v0::shm
