#include "lockstep/mesh/mesh_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/mesh/shared_copies.h"

namespace lockstep::inline v0::mesh_layout_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;

TEST(MeshLayout, TheLastAxisHasNeighbours) {
  const MeshLayout layout({{"data", 2}, {"shard", 3}}, 6);
  EXPECT_THAT(layout.coordinates_of(4), ElementsAre(1, 1));
  EXPECT_EQ(layout.rank_at(std::vector<int>{1, 2}), 5);
  EXPECT_THAT(layout.group_of(4, Names{"shard"}), ElementsAre(3, 4, 5));
  EXPECT_THAT(layout.group_of(4, Names{"data"}), ElementsAre(1, 4));
  EXPECT_THAT(layout.group_of(4, Names{"shard", "data"}), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(layout.group_of(4, Names{}), ElementsAre(4));
  EXPECT_EQ(layout.str(), "data=2, shard=3");
}

// Every set of axes divides the ranks, and a rank's number in a group is its place.
TEST(MeshLayout, GroupsDivideTheRanks) {
  const MeshLayout layout({{"a", 2}, {"b", 1}, {"c", 3}, {"d", 4}}, 24);
  const Names all{"a", "b", "c", "d"};
  for (unsigned bits = 0; bits < 16; ++bits) {
    Names axes;
    int size = 1;
    for (size_t i = 0; i < 4; ++i) {
      if ((bits >> i & 1) == 0) continue;
      axes.push_back(all[i]);
      size *= layout.axes()[i].size;
    }
    std::set<std::vector<int>> groups;
    std::set<int> colors;
    for (int rank = 0; rank < 24; ++rank) {
      const auto group = layout.group_of(rank, axes);
      EXPECT_EQ(group.size(), static_cast<size_t>(size));
      EXPECT_EQ(std::count(group.begin(), group.end(), rank), 1);
      EXPECT_EQ(layout.rank_at(layout.coordinates_of(rank)), rank);
      groups.insert(group);
      colors.insert(layout.color_of(rank, axes));
      if (axes.size() == 1) {
        const int place = layout.coordinates_of(rank)[layout.index_of(axes[0])];
        EXPECT_EQ(group[static_cast<size_t>(place)], rank);
      }
    }
    EXPECT_EQ(groups.size(), static_cast<size_t>(24 / size));
    EXPECT_EQ(colors.size(), groups.size());
  }
}

TEST(MeshLayout, OneSizeMayBeWhatTheOthersLeave) {
  EXPECT_EQ(MeshLayout({{"data", 0}, {"shard", 4}}, 12).size_of("data"), 3);
  EXPECT_EQ(MeshLayout({{"data", 0}}, 1).size_of("data"), 1);
  EXPECT_EQ(parse_axes("data,shard=4"), (std::vector<MeshAxis>{{"data", 0}, {"shard", 4}}));
}

TEST(MeshLayout, WhatIsWrongIsOneLine) {
  const auto error = [](std::vector<MeshAxis> axes, int ranks) {
    return message_of<InvalidArgument>([&] { MeshLayout(axes, ranks); });
  };
  EXPECT_EQ(error({{"data", 2}, {"shard", 3}}, 4),
            "Mesh: data 2 x shard 3 = 6, but there are 4 ranks; give sizes whose product is that");
  EXPECT_THAT(error({{"data", 0}, {"shard", 3}}, 4), HasSubstr("shard 3 = 3, but there are 4"));
  EXPECT_THAT(error({{"a", 1 << 30}, {"b", 1 << 30}, {"c", 1 << 30}}, 8),
              HasSubstr("but there are 8"));
  EXPECT_THAT(error({}, 4), HasSubstr("no axes"));
  EXPECT_THAT(error({{"a", 0}, {"b", 0}}, 4), HasSubstr("two axes have no size"));
  EXPECT_THAT(error({{"a", 2}, {"a", 2}}, 4), HasSubstr("two axes are called 'a'"));
  EXPECT_THAT(error({{"a b", 4}}, 4), HasSubstr("'a b'"));
  EXPECT_THAT(error({{"", 4}}, 4), HasSubstr("''"));
  EXPECT_THAT(error({{"a", -2}}, 4), HasSubstr("is -2"));
  for (const char* text : {"data=", "data=x", "data=0", "data=-1", "data=2=3", "=2", "data=2,,a=1",
                           "data=99999999999", ""})
    EXPECT_THAT(message_of<InvalidArgument>([&] { parse_axes(text); }), HasSubstr("Mesh: "))
        << text;
  const MeshLayout layout({{"data", 2}, {"shard", 2}}, 4);
  EXPECT_THAT(message_of<InvalidArgument>([&] { layout.index_of("shad"); }),
              HasSubstr("did you mean shard?); the axes are data, shard"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { layout.group_of(0, Names{"data", "data"}); }),
              HasSubstr("named twice"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { layout.coordinates_of(4); }), HasSubstr("rank 4"));
}

TEST(MeshLayout, SaysWhoSharesACopy) {
  EXPECT_EQ(shared_copies("data=2,shard=2", 4), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(shared_copies("data,shard=3", 6), (std::vector<int>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(shared_copies("shard=3", 3), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(shared_copies("data=3", 3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(shared_copies("shard=1,data=2", 2), (std::vector<int>{0, 1}));
  const auto error = [](const char* mesh) {
    return message_of<InvalidArgument>([&] { shared_copies(mesh, 4); });
  };
  EXPECT_THAT(error("data=2,pipe=2"), HasSubstr("mesh is 'data=2,pipe=2'; give axes named data "));
  EXPECT_THAT(error("shard=2,data=2"), HasSubstr("give shard as the last axis"));
  EXPECT_THAT(error("data=2,shard=3"), HasSubstr("data 2 x shard 3 = 6"));
}

}  // namespace
}  // namespace lockstep::inline v0::mesh_layout_test
