#include "lockstep/comm/engines/tcp/engine.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <numeric>

#include "lockstep/comm/engines/tcp/link.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::tcp::engine_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::pair<UniqueFd, UniqueFd> connection() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::unique_ptr<Engine> engine_of(int rank, UniqueFd link) {
  std::vector<UniqueFd> links(2);
  links[static_cast<size_t>(1 - rank)] = std::move(link);
  return std::make_unique<Engine>(std::move(links), rank, ScheduleSizes{});
}

Call call_of(Op op, uint64_t sequence, int64_t* value, ReduceOp reduce = ReduceOp::kSum) {
  Call call;
  call.op = op;
  call.dtype = at::kLong;
  call.reduce = reduce;
  call.root = op == Op::kBroadcast ? 0 : -1;
  call.count = 1;
  call.input = call.output = reinterpret_cast<std::byte*>(value);
  call.sequence = sequence;
  return call;
}

// Acts as the other rank, frame by frame.
class Peer final : public FrameListener {
 public:
  explicit Peer(UniqueFd fd) : link_(std::move(fd), 0) {}

  void send(FrameHeader header, std::string_view text = {}) {
    link_.push(header, text);
    link_.flush();
  }
  std::vector<FrameHeader> hear() {
    while (link_.receive(*this)) {
    }
    return std::exchange(heard_, {});
  }

 private:
  std::byte* begin_frame(int, const FrameHeader& header, std::string_view) override {
    heard_.push_back(header);
    payload_.resize(header.bytes);
    return payload_.data();
  }
  void end_frame(int, const FrameHeader&) override {}

  Link link_;
  std::vector<FrameHeader> heard_;
  std::vector<std::byte> payload_;
};

// A rank's report of its collective `sequence`: all earlier ones were like `before`, and this one
// is `call`.
FrameHeader word_of(FrameType type, uint64_t sequence, const Call& call, const Call& before) {
  FrameHeader header;
  header.type = type;
  header.key = collective_key(sequence, 0);
  header.fingerprint = fingerprint(call);
  for (uint64_t i = 1; i < sequence; ++i)
    header.history = (header.history ^ fingerprint(before)) * 0x9e3779b97f4a7c15ULL + 1;
  return header;
}

// Far more calls than are active at once or are remembered once they are complete.
TEST(TcpEngine, WhatWaitsLongForItsTurnIsTheSameCallStill) {
  constexpr int kCalls = 1000;
  auto [a, b] = connection();
  const std::unique_ptr<Engine> engines[] = {engine_of(0, std::move(a)),
                                             engine_of(1, std::move(b))};
  std::vector<int64_t> values[2];
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (const int rank : {0, 1}) {
    Engine& engine = *engines[rank];
    values[rank].resize(kCalls);
    std::iota(values[rank].begin(), values[rank].end(), rank);
    for (int i = 0; i < kCalls; ++i) {
      const Call call = call_of(Op::kAllReduce, static_cast<uint64_t>(i) + 1, &values[rank][i]);
      exchanges.push_back(engine.exchange(call, engine.enter(call), {0, 1}, 0));
      engine.advance();
    }
  }
  const Deadline deadline = Deadline::seconds(60);
  while (!(exchanges[kCalls - 1]->done() && exchanges.back()->done()) && !deadline.expired()) {
    for (const auto& engine : engines) engine->advance();
  }
  for (int i = 0; i < kCalls; ++i) {
    ASSERT_EQ(values[0][i], 2 * i + 1);
    ASSERT_EQ(values[1][i], 2 * i + 1);
  }
}

// A peer that reports its place is ahead of its reports of each call.
TEST(TcpEngine, ACallThatIsHeardOfAfterALaterOneIsCompared) {
  auto [a, b] = connection();
  const std::unique_ptr<Engine> engine = engine_of(0, std::move(a));
  Peer peer(std::move(b));
  int64_t value = 0;
  const Call sum = call_of(Op::kAllReduce, 0, &value);
  const Call max = call_of(Op::kAllReduce, 0, &value, ReduceOp::kMax);
  FrameHeader later = word_of(FrameType::kHere, 300, sum, sum);
  later.kind = kHereUnasked;
  peer.send(later, "all_reduce sum int64 x 1\n0");
  peer.send(word_of(FrameType::kCall, 5, max, sum), "all_reduce max int64 x 1");
  engine->advance();
  for (uint64_t i = 1; i < 5; ++i) engine->enter(call_of(Op::kAllReduce, i, &value));
  engine->advance();
  engine->enter(call_of(Op::kAllReduce, 5, &value));
  EXPECT_THAT(message_of<Mismatch>([&] { engine->advance(); }),
              AllOf(HasSubstr("rank 0: #5 all_reduce sum int64 x 1"),
                    HasSubstr("rank 1: #5 all_reduce max int64 x 1")));
}

// A root whose calls complete long before the others reach them.
class FarAhead : public ::testing::Test {
 protected:
  static constexpr uint64_t kCalls = 500;

  FarAhead() {
    auto [a, b] = connection();
    engine_ = engine_of(0, std::move(a));
    peer_ = std::make_unique<Peer>(std::move(b));
    for (uint64_t i = 1; i <= kCalls; ++i) {
      const Call call = call_of(Op::kBroadcast, i, &value_);
      const auto exchange = engine_->exchange(call, engine_->enter(call), {0, 1}, 0);
      while (!exchange->done()) engine_->advance();
      peer_->hear();
    }
  }
  Call broadcast() { return call_of(Op::kBroadcast, 0, &value_); }

  int64_t value_ = 0;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Peer> peer_;
};

TEST_F(FarAhead, WhatItKnowsNoMoreItDoesNotCompare) {
  peer_->send(word_of(FrameType::kCall, 5, call_of(Op::kAllReduce, 0, &value_), broadcast()),
              "all_reduce sum int64 x 1");
  engine_->advance();
  FrameHeader where;
  where.type = FrameType::kWhere;
  where.kind = kWhereCalled;
  for (const uint64_t sequence : {uint64_t{5}, kCalls, kCalls + 1}) {
    where.key = collective_key(sequence, 0);
    peer_->send(where);
  }
  engine_->advance();
  const std::vector<FrameHeader> answers = peer_->hear();
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].kind, kHereForgotten);
  EXPECT_EQ(answers[1].kind, kHereCalled);
  EXPECT_EQ(answers[1].fingerprint, fingerprint(broadcast()));
  EXPECT_EQ(answers[2].kind, kHereCalled);  // its position
  EXPECT_EQ(sequence_of(answers[2].key), kCalls);
}

// It nevertheless finds it in the history of a call that it knows.
TEST_F(FarAhead, ADifferenceFarBackIsFoundByTheHistory) {
  FrameHeader word = word_of(FrameType::kCall, kCalls, broadcast(), broadcast());
  word.history += 1;
  peer_->send(word, "broadcast int64 x 1, root 0");
  EXPECT_THAT(message_of<Mismatch>([&] { engine_->advance(); }),
              HasSubstr("different collectives more than 1 call before #500 broadcast"));
}

}  // namespace
}  // namespace lockstep::inline v0::tcp::engine_test
