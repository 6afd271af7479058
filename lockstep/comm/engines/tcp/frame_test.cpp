#include "lockstep/comm/engines/tcp/frame.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <map>
#include <random>

#include "lockstep/comm/engines/tcp/link.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::tcp::frame_test {
namespace {

std::string bytes_of(const FrameHeader& header) {
  return {reinterpret_cast<const char*>(&header), sizeof header};
}
std::span<const std::byte> view(const std::string& bytes) {
  return std::as_bytes(std::span(bytes));
}

TEST(Frame, AHeaderIsReadBack) {
  FrameHeader header;
  header.type = FrameType::kMessage;
  header.tag = -3;
  header.key = collective_key(1234567, 89);
  header.bytes = kMaxPayload;
  header.text_bytes = kMaxText;
  const std::string bytes = bytes_of(header);
  EXPECT_FALSE(parse_frame_header(view(bytes).first(sizeof header - 1)));
  const auto read = parse_frame_header(view(bytes));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->tag, -3);
  EXPECT_EQ(sequence_of(read->key), 1234567u);
}

TEST(Frame, WhatNoRankSendsIsRefused) {
  FrameHeader header;
  header.type = static_cast<FrameType>(0);
  EXPECT_THROW(parse_frame_header(view(bytes_of(header))), StoreError);
  header.type = static_cast<FrameType>(11);
  EXPECT_THROW(parse_frame_header(view(bytes_of(header))), StoreError);
  header.type = FrameType::kData;
  header.bytes = kMaxPayload + 1;
  EXPECT_THROW(parse_frame_header(view(bytes_of(header))), StoreError);
  header.type = FrameType::kBye;
  header.bytes = 1;
  EXPECT_THROW(parse_frame_header(view(bytes_of(header))), StoreError);
  header.bytes = 0;
  header.text_bytes = kMaxText + 1;
  EXPECT_THROW(parse_frame_header(view(bytes_of(header))), StoreError);
  header.text_bytes = 0;
  header.type = FrameType::kAbort;
  for (const int kind : {0, 5, 255}) {
    header.kind = static_cast<uint8_t>(kind);
    EXPECT_THROW(parse_frame_header(view(bytes_of(header))), StoreError) << kind;
  }
  header.kind = 4;
  EXPECT_TRUE(parse_frame_header(view(bytes_of(header))));
}

// Takes everything that arrives.
class Sink final : public FrameListener {
 public:
  std::byte* begin_frame(int, const FrameHeader& header, std::string_view text) override {
    EXPECT_LE(header.bytes, kMaxPayload);
    EXPECT_EQ(text.size(), header.text_bytes);
    payload.assign(header.bytes, std::byte{0});
    texts += text;
    return payload.data();
  }
  void end_frame(int, const FrameHeader& header) override {
    ++frames;
    EXPECT_EQ(payload.size(), header.bytes);
    for (const std::byte b : payload) sum += static_cast<uint64_t>(b);
  }
  std::vector<std::byte> payload;
  std::string texts;
  int frames = 0;
  uint64_t sum = 0;
};

struct Pair {
  UniqueFd ours, theirs;
};
Pair make_pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Random bytes, mostly with plausible headers: the link reads them or is lost, and never accesses
// memory outside its own (the sanitizers would report it).
TEST(Link, SurvivesAnything) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 2000; ++turn) {
    Pair pair = make_pair();
    Link link(std::move(pair.ours), 1);
    Sink sink;
    std::string stream;
    for (int frame = 0; frame < 4; ++frame) {
      FrameHeader header;
      header.type = static_cast<FrameType>(random() % (turn % 2 == 0 ? 10 : 13) + 1);
      header.kind = static_cast<uint8_t>(random());
      header.text_bytes = static_cast<uint16_t>(random() % (turn % 3 == 0 ? 9000 : 200));
      header.bytes = random() % 5 == 0 ? random() % 3000 : 0;
      header.key = random();
      stream += bytes_of(header);
      for (unsigned n = random() % 500; n > 0; --n) stream += static_cast<char>(random());
    }
    for (size_t at = 0; at < stream.size() && link.lost().empty();) {
      const size_t n = std::min<size_t>(random() % 700 + 1, stream.size() - at);
      ASSERT_EQ(::send(pair.theirs.get(), stream.data() + at, n, MSG_NOSIGNAL),
                static_cast<ssize_t>(n));
      at += n;
      link.receive(sink);
    }
    pair.theirs.reset();
    while (link.lost().empty()) link.receive(sink);
  }
}

// Frames of all sizes through a connection that accepts little at a time.
TEST(Link, FramesArriveWholeAndInOrder) {
  std::mt19937 random(3);
  Pair pair = make_pair();
  const int small = 4096;
  ::setsockopt(pair.ours.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  Link from(std::move(pair.ours), 1), to(std::move(pair.theirs), 0);
  Sink sink;
  std::string texts;
  uint64_t sum = 0;
  std::vector<std::vector<std::byte>> payloads;
  constexpr int kFrames = 300;
  for (int i = 0; i < kFrames; ++i) {
    const size_t bytes = i % 50 == 0 ? 300'000 : random() % 100;
    std::vector<std::byte>& payload = payloads.emplace_back(bytes);
    for (std::byte& b : payload) sum += static_cast<uint64_t>(b = static_cast<std::byte>(random()));
    const std::string text = std::to_string(i) + ";";
    texts += text;
    FrameHeader header;
    header.type = FrameType::kData;
    from.push(header, text, payload.data(), bytes);
  }
  while (from.has_output() || sink.frames < kFrames) {
    from.flush();
    to.receive(sink);
    ASSERT_EQ(to.lost(), "");
  }
  EXPECT_EQ(sink.texts, texts);
  EXPECT_EQ(sink.sum, sum);
  from.push(FrameHeader{}, "last");
  EXPECT_TRUE(from.flush());
}

}  // namespace
}  // namespace lockstep::inline v0::tcp::frame_test
