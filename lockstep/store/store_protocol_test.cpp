#include "lockstep/store/store_protocol.h"

#include <gtest/gtest.h>

#include <random>

#include "lockstep/core/errors.h"
#include "lockstep/store/store_service.h"

namespace lockstep::inline v0 {
namespace store_protocol_test {

StoreRequest request(StoreOp op, std::vector<std::string> keys, uint64_t id = 1) {
  StoreRequest result;
  result.id = id;
  result.op = op;
  result.keys = std::move(keys);
  return result;
}

std::vector<StoreRequest> every_request() {
  std::vector<StoreRequest> all;
  for (const StoreOp op : {StoreOp::kSet, StoreOp::kTryGet, StoreOp::kGet, StoreOp::kAdd,
                           StoreOp::kCompareSet, StoreOp::kRemove}) {
    all.push_back(request(op, {"key"}, 0x0102030405060708));
  }
  all[0].value = std::string("v\0w", 3);
  all[3].delta = -3;
  all[4].value = "desired";
  all[4].expected = "expected";
  all.push_back(request(StoreOp::kWait, {"a", "bb", std::string(4096, 'c')}));
  all.push_back(request(StoreOp::kWait, {}));
  all.push_back(request(StoreOp::kCancel, {}, UINT64_MAX));
  return all;
}

std::string body_of(const std::string& frame) {
  return frame.substr(4);
}

TEST(StoreProtocol, RequestsComeBackAsTheyWere) {
  for (const StoreRequest& original : every_request()) {
    const StoreRequest copy = decode_store_request(body_of(encode(original)));
    EXPECT_EQ(copy.id, original.id);
    EXPECT_EQ(copy.op, original.op);
    EXPECT_EQ(copy.keys, original.keys);
    EXPECT_EQ(copy.value, original.value);
    EXPECT_EQ(copy.expected, original.expected);
    EXPECT_EQ(copy.delta, original.delta);
  }
}

TEST(StoreProtocol, ResponsesComeBackAsTheyWere) {
  StoreResponse original;
  original.id = 9;
  original.status = StoreStatus::kError;
  original.number = INT64_MIN;
  original.value = "text";
  const StoreResponse copy = decode_store_response(body_of(encode(original)));
  EXPECT_EQ(copy.id, 9u);
  EXPECT_EQ(copy.status, StoreStatus::kError);
  EXPECT_EQ(copy.number, INT64_MIN);
  EXPECT_EQ(copy.value, "text");
}

TEST(StoreProtocol, EveryTruncationAndExtensionIsRefused) {
  for (const StoreRequest& original : every_request()) {
    const std::string body = body_of(encode(original));
    for (size_t size = 0; size < body.size(); size += size < 64 ? 1 : 997) {
      EXPECT_THROW(decode_store_request(body.substr(0, size)), StoreError) << size;
    }
    EXPECT_THROW(decode_store_request(body + "x"), StoreError);
  }
}

// A small fuzzer with a fixed seed: random edits of valid bodies either decode or throw StoreError,
// nothing else.
TEST(StoreProtocol, RandomEditsNeverDoMoreThanThrow) {
  std::mt19937 random(1234);
  const std::vector<StoreRequest> all = every_request();
  for (int round = 0; round < 20000; ++round) {
    std::string body = body_of(encode(all[random() % all.size()])).substr(0, 200);
    for (unsigned edits = random() % 4; edits > 0 && !body.empty(); --edits) {
      body[random() % body.size()] = static_cast<char>(random());
    }
    try {
      decode_store_request(body);
    } catch (const StoreError&) {
    }
    try {
      decode_store_response(body);
    } catch (const StoreError&) {
    }
  }
}

TEST(StoreProtocol, ACountOfKeysThatCannotBeTrueReservesNoMemory) {
  std::string body(8, '\0');
  body += '\x04';
  body += std::string(4, '\xff');
  EXPECT_THROW(decode_store_request(body), StoreError);
}

TEST(StoreService, ParksUntilTheLastKeyIsThere) {
  StoreService service;
  EXPECT_TRUE(service.handle(1, request(StoreOp::kWait, {"a", "b"}, 10)).empty());
  EXPECT_TRUE(service.handle(2, request(StoreOp::kGet, {"a"}, 20)).empty());
  EXPECT_EQ(service.parked(), 2u);
  StoreRequest set_a = request(StoreOp::kSet, {"a"}, 30);
  set_a.value = "A";
  const auto replies = service.handle(3, set_a);
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].client, 3u);
  EXPECT_EQ(replies[1].client, 2u);
  EXPECT_EQ(replies[1].response.value, "A");
  EXPECT_EQ(service.handle(3, request(StoreOp::kAdd, {"b"}, 31)).size(), 2u);
  EXPECT_EQ(service.parked(), 0u);
}

TEST(StoreService, CancelNamesAMissingKeyOrSaysNothing) {
  StoreService service;
  service.handle(1, request(StoreOp::kGet, {"k"}, 10));
  EXPECT_TRUE(service.handle(2, request(StoreOp::kCancel, {}, 10)).empty())
      << "another client's identifier";
  const auto replies = service.handle(1, request(StoreOp::kCancel, {}, 10));
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].response.status, StoreStatus::kCancelled);
  EXPECT_EQ(replies[0].response.value, "k");
  EXPECT_TRUE(service.handle(1, request(StoreOp::kCancel, {}, 10)).empty());
}

TEST(StoreService, ForgetsWhatALostClientWaitedFor) {
  StoreService service;
  service.handle(1, request(StoreOp::kGet, {"k"}, 10));
  service.drop(1);
  EXPECT_EQ(service.parked(), 0u);
  EXPECT_EQ(service.handle(2, request(StoreOp::kSet, {"k"}, 1)).size(), 1u);
}

}  // namespace store_protocol_test
}  // namespace lockstep::inline v0
