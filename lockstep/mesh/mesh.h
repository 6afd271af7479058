// Mesh: the ranks of a communicator along named axes, and a communicator for each set of axes.
//
//   Mesh mesh(comm, {{"data", 2}, {"shard", 4}});   // 8 ranks; the last axis has neighbours
//   mesh["shard"].all_reduce(t);                    // among the 4 ranks of this one's row
//   mesh.over({"data", "shard"}).barrier();         // among all 8
//   std::cout << mesh.str();
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/mesh/mesh_layout.h"

namespace lockstep::inline v0 {

// A shared handle; copies refer to the same mesh.
// Thread-safety: one thread at a time for each of its communicators.
class LOCKSTEP_API Mesh {
 public:
  // Makes the communicators of all sets of axes, in one order on all ranks; `comm` itself is used
  // for nothing else. A group takes memory and sockets when it is first used, so unused ones cost
  // little (communicator.h, "Further groups"). Their errors name a rank by its number in the job
  // and its places: "rank 3 of the job (data 1, tensor 1)".
  // Collective: all ranks call it.
  // Throws: InvalidArgument before anything is sent: as MeshLayout, and for more than kMostAxes
  // axes; the errors of Communicator::split.
  Mesh(Communicator comm, std::vector<MeshAxis> axes);

  static constexpr size_t kMostAxes = 6;

  const MeshLayout& layout() const;  // the axes and their sizes
  // This rank's coordinates, one number per axis, and its place along one axis.
  const std::vector<int>& coordinates() const;
  int place(std::string_view axis) const;

  // The ranks that differ from this one along the axis only; a rank's number there is its place.
  // Throw InvalidArgument for an unknown axis.
  Communicator& operator[](std::string_view axis) const;
  // Along several axes: in the mesh's order, whatever the order of the names.
  Communicator& over(const std::vector<std::string>& axes) const;

  // Several lines with the place of each rank:
  //   mesh data=2, shard=2 of 4 ranks
  //     data 0: along shard ranks 0, 1
  //     data 1: along shard ranks 2, 3
  std::string str() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::inline v0
