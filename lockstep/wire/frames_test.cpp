#include "lockstep/wire/frames.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::wire {
namespace frames_test {

const std::vector<std::string>& bodies() {
  static const std::vector<std::string> all = {"", "x", std::string(255, 'a'),
                                               std::string("a\0b\n", 4), std::string(70'000, 'z')};
  return all;
}

TEST(Frames, AStreamIsCutAtAnyPlace) {
  std::string stream;
  for (const std::string& body : bodies()) stream += make_frame(body, 100'000);
  for (const size_t step : {size_t{1}, size_t{3}, size_t{1000}, stream.size()}) {
    FrameReader reader(100'000);
    std::vector<std::string> found;
    for (size_t at = 0; at < stream.size(); at += step) {
      reader.append(std::string_view(stream).substr(at, step));
      while (const auto body = reader.next()) found.emplace_back(*body);
    }
    EXPECT_EQ(found, bodies());
  }
}

TEST(Frames, TheLengthIsLittleEndian) {
  EXPECT_EQ(make_frame(std::string(0x0102, 'x'), 1000).substr(0, 4),
            std::string("\x02\x01\0\0", 4));
}

TEST(Frames, ALengthBeyondTheLimitIsRefusedAtOnce) {
  FrameReader reader(10);
  reader.append(std::string_view("\x0b\0\0\0", 4));
  EXPECT_THROW(reader.next(), StoreError);
  FrameReader another(size_t{1} << 20);
  another.append(std::string_view("\xff\xff\xff\xff", 4));
  EXPECT_THROW(another.next(), StoreError);
  EXPECT_THROW(make_frame("12345678901", 10), InvalidArgument);
}

TEST(Frames, BlockingEndsUnderstandEachOther) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  const UniqueFd one(fds[0]), two(fds[1]);
  std::thread sender([&] {
    for (const std::string& body : bodies())
      send_frame(one.get(), body, 100'000, Deadline::seconds(10));
  });
  for (const std::string& body : bodies())
    EXPECT_EQ(receive_frame(two.get(), 100'000, Deadline::seconds(10)), body);
  sender.join();
  send_frame(one.get(), "much", 100, Deadline::seconds(10));
  EXPECT_THROW(receive_frame(two.get(), 3, Deadline::seconds(10)), StoreError);
  EXPECT_THROW(receive_frame(one.get(), 3, Deadline::seconds(0.02)), Timeout);
}

}  // namespace frames_test
}  // namespace lockstep::inline v0::wire
