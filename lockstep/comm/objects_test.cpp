#include "lockstep/comm/objects.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/comm/internal/object_bytes.h"
#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::objects_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json object_of(int rank) {
  json object = {{"rank", rank},
                 {"name", "größe " + std::string(static_cast<size_t>(rank * 1000), 'x')},
                 {"values", {1, -2, 3.25, nullptr, true}},
                 {"nested", {{"deep", {{"deeper", json::array()}}}}},
                 {"big", UINT64_MAX - static_cast<uint64_t>(rank)},
                 {"tiny", 5e-324}};
  return object;
}

TEST(Objects, EveryFormCarriesThem) {
  testing::run_threads(3, [](Communicator& comm) {
    const int me = comm.rank();
    EXPECT_EQ(broadcast_object(comm, me == 1 ? object_of(1) : json(), 1), object_of(1));
    std::vector<json> parts;
    if (me == 2)
      for (int r = 0; r < 3; ++r) parts.push_back(object_of(r));
    EXPECT_EQ(scatter_object(comm, parts, 2), object_of(me));
    const std::vector<json> all = all_gather_object(comm, object_of(me));
    ASSERT_EQ(all.size(), 3u);
    for (int r = 0; r < 3; ++r) EXPECT_EQ(all[static_cast<size_t>(r)], object_of(r));
    const std::vector<json> gathered = gather_object(comm, object_of(me), 0);
    EXPECT_EQ(gathered, me == 0 ? all : std::vector<json>());
    // Around the ring, two with one tag keep their order.
    const int next = (me + 1) % 3;
    const int previous = (me + 2) % 3;
    send_object(comm, object_of(me), next, 5);
    send_object(comm, me, next, 5);
    EXPECT_EQ(recv_object(comm, previous, 5), object_of(previous));
    EXPECT_EQ(recv_object(comm, previous, 5), previous);
  });
}

TEST(Objects, ValuesArriveAsTheyWere) {
  testing::run_threads(2, [](Communicator& comm) {
    const json given = {std::nan(""), -INFINITY,      0.1,           json::binary({1, 0, 255}),
                        "",           json::object(), json::array(), INT64_MIN};
    const json got = broadcast_object(comm, comm.rank() == 0 ? given : json(), 0);
    EXPECT_TRUE(std::isnan(got[0].get<double>()));
    EXPECT_EQ(got[1].get<double>(), -INFINITY);
    EXPECT_EQ(got[2].get<double>(), 0.1);
    for (size_t i = 3; i < given.size(); ++i) EXPECT_EQ(got[i], given[i]) << i;
  });
}

TEST(Objects, OfManyMegabytes) {
  testing::run_threads(2, [](Communicator& comm) {
    const std::string text(20'000'000, 'z');
    if (comm.rank() == 0) {
      send_object(comm, text, 1);
    } else {
      EXPECT_TRUE(recv_object(comm, 0) == json(text));
    }
    const std::vector<json> all = all_gather_object(comm, comm.rank() == 0 ? json() : json(text));
    EXPECT_TRUE(all[0].is_null());
    EXPECT_EQ(all[1].get_ref<const std::string&>().size(), text.size());
  });
}

at::Tensor length(int64_t n) {
  return at::full({1}, n, at::kLong);
}

TEST(Objects, MalformedBytesAreDataErrors) {
  testing::run_threads(2, [](Communicator& comm) {
    if (comm.rank() == 0) {
      for (const int byte : {0x1c, 0x9f, 0xff, 0xc1, 0x7b}) {
        comm.send(length(1), 1);
        comm.send(at::full({1}, byte, at::kByte), 1);
      }
      comm.send(length(0), 1);
      comm.send(at::full({0}, 0, at::kByte), 1);
      comm.send(length(2), 1);  // two objects
      comm.send(at::full({2}, 1, at::kByte), 1);
      comm.send(length(-1), 1);
      comm.send(length(kMaxObjectBytes + 1), 1);
      comm.send(length(100'000), 1);  // [[[[...
      comm.send(at::full({100'000}, 0x81, at::kByte), 1);
      send_object(comm, "all well", 1);
      return;
    }
    for (int i = 0; i < 10; ++i) {
      try {
        recv_object(comm, 0);
        ADD_FAILURE() << i;
      } catch (const DataError& error) {
        EXPECT_THAT(error.what(), HasSubstr("from rank 0")) << i;
      }
    }
    EXPECT_EQ(recv_object(comm, 0), "all well") << "the communicator is not broken";
  });
}

TEST(Objects, DepthIsLimitedOnBothSides) {
  json deep;
  for (int i = 0; i < kMaxObjectDepth; ++i) deep = json::array({std::move(deep), 1});
  const std::vector<uint8_t> bytes = encode_object(deep);
  EXPECT_EQ(decode_object(bytes, "rank 0"), deep);
  json maps;
  for (int i = 0; i < kMaxObjectDepth; ++i) maps = json{{"a", std::move(maps)}, {"b", 2}};
  EXPECT_EQ(decode_object(encode_object(maps), "rank 0"), maps);
  deep = json::array({std::move(deep)});
  EXPECT_THROW(encode_object(deep), InvalidArgument);
  // Deep by arrays, maps, tags and indefinite lengths.
  for (const int byte : {0x81, 0xa1, 0xc6, 0x9f, 0xbf, 0x5f}) {
    const std::vector<uint8_t> malicious(1'000'000, static_cast<uint8_t>(byte));
    EXPECT_THROW(decode_object(malicious, "rank 0"), DataError) << byte;
  }
  // Wide is not deep.
  json wide = json::array();
  for (int i = 0; i < 100'000; ++i) wide.push_back(json::array({i, json::object()}));
  EXPECT_EQ(decode_object(encode_object(wide), "rank 0"), wide);
}

TEST(Objects, MistakesAreRefused) {
  testing::run_threads(2, [](Communicator& comm) {
    EXPECT_THROW(broadcast_object(comm, 1, 2), InvalidArgument);
    EXPECT_THROW(gather_object(comm, 1, -1), InvalidArgument);
    EXPECT_THROW(send_object(comm, 1, 7), InvalidArgument);
    if (comm.rank() == 0) {
      EXPECT_THROW(scatter_object(comm, {1}, 0), InvalidArgument);
    }
    comm.barrier();
  });
}

}  // namespace
}  // namespace lockstep::inline v0::objects_test
