#include "lockstep/mesh/shared_copies.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/mesh/mesh_layout.h"

namespace lockstep::inline v0 {
namespace {

constexpr std::string_view kData = "data", kShard = "shard";
constexpr int64_t kMostRanks = 4096;

}  // namespace

std::vector<int> shared_copies(std::string_view mesh, int ranks) {
  const MeshLayout layout(parse_axes(mesh), ranks);
  const auto refuse = [&](const char* instead) {
    throw InvalidArgument("mesh is '" + std::string(mesh) + "'; give " + instead);
  };
  int sharing = 1;
  for (const MeshAxis& axis : layout.axes()) {
    if (axis.name != kData && axis.name != kShard) refuse("axes named data and shard");
    if (axis.name != kShard) continue;
    sharing = axis.size;
    if (sharing > 1 && axis != layout.axes().back())
      refuse("shard as the last axis, whose ranks are neighbours");
  }
  std::vector<int> copies;
  for (int rank = 0; rank < ranks; ++rank) copies.push_back(rank / sharing);
  return copies;
}

int ranks_of(std::string_view mesh) {
  int64_t product = 1;
  for (const MeshAxis& axis : parse_axes(mesh))
    product = std::min(product * axis.size, kMostRanks + 1);
  return product < 1 || product > kMostRanks ? 1 : static_cast<int>(product);
}

}  // namespace lockstep::inline v0
