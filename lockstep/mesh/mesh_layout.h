// MeshLayout: ranks as points of a grid with named axes. Pure; no libtorch.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// A named axis of a mesh.
struct MeshAxis {
  std::string name;  // letters, digits and '_'
  int size = 0;      // 0, for at most one axis: the remaining ranks
  bool operator==(const MeshAxis&) const = default;
};

// "data=2,shard=4" or "data,shard=4", as --mesh takes it.
// Throws: InvalidArgument.
LOCKSTEP_API std::vector<MeshAxis> parse_axes(std::string_view text);

// Neighbours along the last axis have consecutive ranks: in {data: 2, shard: 3}, rank 4 is at (1,
// 1).
class LOCKSTEP_API MeshLayout {
 public:
  // Throws a one-line InvalidArgument for no axes, a bad or repeated name, a negative size, two
  // unknown sizes, or sizes whose product is not `ranks`.
  MeshLayout(std::vector<MeshAxis> axes, int ranks);

  const std::vector<MeshAxis>& axes() const { return axes_; }  // in order
  int ranks() const { return ranks_; }                         // on all axes together
  // The index of an axis.
  // Throws: InvalidArgument that lists the names.
  size_t index_of(std::string_view name) const;
  int size_of(std::string_view name) const { return axes_[index_of(name)].size; }

  // One number per axis. Throw InvalidArgument for a rank or a place out of range.
  std::vector<int> coordinates_of(int rank) const;
  int rank_at(std::span<const int> coordinates) const;

  // The ranks that differ from `rank` along these axes only, itself included, in order: the last of
  // the axes varies fastest, whatever the order of the names.
  std::vector<int> group_of(int rank, std::span<const std::string> axes) const;
  // A number that the ranks of such a group share and that no other group of these axes has.
  int color_of(int rank, std::span<const std::string> axes) const;

  // "data=2, shard=3"
  std::string str() const;

 private:
  std::vector<bool> chosen(std::span<const std::string> axes) const;

  std::vector<MeshAxis> axes_;
  int ranks_;
};

}  // namespace lockstep::inline v0
