// MeshLayout: ranks as points of a grid with named axes. Pure; no libtorch.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct MeshAxis {
  std::string name;  // letters, digits and '_'
  int size = 0;      // 0, of one axis at most: what the others leave
  bool operator==(const MeshAxis&) const = default;
};

// "data=2,shard=4" or "data,shard=4", as --mesh takes it. Throws InvalidArgument.
std::vector<MeshAxis> parse_axes(std::string_view text);

// Neighbours along the last axis have consecutive ranks: of {data: 2, shard: 3}, rank 4 is at (1, 1).
class MeshLayout {
 public:
  // Throws InvalidArgument in one line: no axes, a bad or repeated name, a negative size, two unknown
  // sizes, sizes whose product is not `ranks`.
  MeshLayout(std::vector<MeshAxis> axes, int ranks);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int ranks() const { return ranks_; }
  // The place of an axis. Throws InvalidArgument that lists the names.
  size_t index_of(std::string_view name) const;
  int size_of(std::string_view name) const { return axes_[index_of(name)].size; }

  // One number an axis. Throw InvalidArgument for a rank or a place outside.
  std::vector<int> coordinates_of(int rank) const;
  int rank_at(std::span<const int> coordinates) const;

  // The ranks that differ from `rank` along these axes only, itself among them, in order; so the last
  // of the axes runs fastest, whatever the order they are named in.
  std::vector<int> group_of(int rank, std::span<const std::string> axes) const;
  // A number that the ranks of such a group share and no other group of these axes has.
  int color_of(int rank, std::span<const std::string> axes) const;

  // "data=2, shard=3"
  std::string str() const;

 private:
  std::vector<bool> chosen(std::span<const std::string> axes) const;

  std::vector<MeshAxis> axes_;
  int ranks_;
};

}  // namespace lockstep
