#include "lockstep/core/stream_copy.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::inline v0::stream_copy_test {
namespace {

TEST(StreamCopy, CopiesWhatItIsGivenAndNoMore) {
  constexpr size_t kAround = 80;
  for (const size_t size : {0, 1, 63, 64, 65, 127, 200, 4096, 16383, 16384, 16500, 40000}) {
    std::string from(size, '\0');
    for (size_t i = 0; i < size; ++i) from[i] = static_cast<char>(i * 31 + i / 256);
    for (size_t shift = 0; shift < 66; shift += 5) {
      std::string to(size + 2 * kAround, '#');
      stream_copy(to.data() + shift, from.data(), size);
      stream_fence();
      EXPECT_EQ(to, std::string(shift, '#') + from + std::string(2 * kAround - shift, '#'))
          << size << " bytes, " << shift << " on";
    }
  }
}

}  // namespace
}  // namespace lockstep::inline v0::stream_copy_test
