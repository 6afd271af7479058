// The seeds of the fuzzer of frames (tests/fuzz/seeds/rpc_frame_fuzz) must match the current
// format; otherwise it gets no further than the first word. When the layout has changed,
//
//   build/release/bin/tests/rpc_test --gtest_also_run_disabled_tests
//       --gtest_filter=Seeds.DISABLED_AreWritten
//
// writes them anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/rpc/internal/frame.h"
#include "lockstep/rpc/internal/hello.h"
#include "lockstep/rpc/internal/receiver.h"

namespace lockstep::inline v0::rpc::internal {
namespace seeds_test {

namespace fs = std::filesystem;

fs::path folder() {
  return fs::path(LOCKSTEP_SOURCE_DIR) / "tests/fuzz/seeds/rpc_frame_fuzz";
}

std::string message(MessageKind kind, uint64_t call, const std::string& body = "",
                    const std::string& table = "", uint32_t tensors = 0, uint64_t ticket = 0) {
  FrameHead head;
  head.kind = kind;
  head.call = call;
  head.ticket = ticket;
  head.body = static_cast<uint32_t>(body.size());
  head.table = static_cast<uint32_t>(table.size());
  head.tensors = tensors;
  return std::string(reinterpret_cast<const char*>(&head), kHeadBytes) + body + table;
}

// By name. The first byte of a stream gives the sizes of its pieces.
std::map<std::string, std::string> seeds() {
  Hello hello;
  hello.peer = {"ps", 1, 2, "h"};
  hello.host_identity = "i";
  hello.word = 4;
  hello.address = 3;
  std::string three, named, placed;
  append_row(three, at::kFloat, {3, 1}, 0);
  append_row(three, at::kDouble, {0, 5}, 0);
  append_row(three, at::kByte, {}, 0);
  append_row(named, at::kByte, {300'000}, 4096);
  append_row(named, at::kChar, {4}, 0);
  append_row(placed, at::kFloat, {1}, 0, {at::kCUDA, 1});
  append_row(placed, at::kByte, {}, 0);
  return {
      {"hello", hello.encode()},
      {"hello_frame", "\xff" + hello_frame(hello) + ready_frame({.reads = true, .address = 5})},
      {"requests", "\x03" + message(MessageKind::kRequest, 1, "hello") +
                       message(MessageKind::kResponse, 2) + message(MessageKind::kCancel, 3) +
                       message(MessageKind::kNotice, 0, "notice")},
      {"tensors", "\x09" + message(MessageKind::kRequest, 1, "a", three, 3) + "xxxxxxxxxxxxy"},
      {"placed", "\x05" + message(MessageKind::kRequest, 1, "a", placed, 2) + "xxxxy"},
      {"named", std::string(1, '\0') + message(MessageKind::kRequest, 1, "a", named, 2, 1) +
                    "abcd" + message(MessageKind::kTaken, 1)},
  };
}

TEST(Seeds, AreWhatIsSaid) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& file : fs::directory_iterator(folder())) {
    std::ifstream stream(file.path(), std::ios::binary);
    files[file.path().filename()] = {std::istreambuf_iterator<char>(stream), {}};
  }
  EXPECT_EQ(files, seeds()) << "the layout of rpc's frames has changed: see the top of " __FILE__;
}

// A receiver reads them to the end, too.
TEST(Seeds, AreRead) {
  for (const auto& [name, bytes] : seeds()) {
    if (name == "hello") {
      EXPECT_EQ(Hello::decode(bytes).peer.name, "ps");
      continue;
    }
    Receiver receiver(uint64_t{1} << 20, ReceiveMemory::make(size_t{1} << 20));
    std::string_view left = std::string_view(bytes).substr(1);
    size_t messages = 0;
    while (!left.empty()) {
      size_t came = 0;
      for (const iovec& place : receiver.places()) {
        const size_t part = std::min(place.iov_len, left.size());
        std::memcpy(place.iov_base, left.data(), part);
        left.remove_prefix(part);
        came += part;
      }
      receiver.came(came, [&](Receiver::Message&) { ++messages; });
    }
    EXPECT_TRUE(receiver.between()) << name;
    EXPECT_GE(messages, 1U) << name;
  }
}

TEST(Seeds, DISABLED_AreWritten) {
  fs::remove_all(folder());
  fs::create_directories(folder());
  for (const auto& [name, bytes] : seeds())
    std::ofstream(folder() / name, std::ios::binary) << bytes;
}

}  // namespace seeds_test
}  // namespace lockstep::inline v0::rpc::internal
