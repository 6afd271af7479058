#include "lockstep/mesh/mesh.h"

#include <cstdint>
#include <map>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace {

// Bit i is set if the i-th axis is in the set.
using AxisSet = uint32_t;

AxisSet all_axes(const MeshLayout& layout) {
  return (AxisSet{1} << layout.axes().size()) - 1;
}

// The axes of the set with more than one rank: sets that differ only in others have the same ranks.
AxisSet without_lone(const MeshLayout& layout, AxisSet set) {
  for (size_t i = 0; i < layout.axes().size(); ++i)
    if (layout.axes()[i].size == 1) set &= ~(AxisSet{1} << i);
  return set;
}

std::vector<std::string> names_in(const MeshLayout& layout, AxisSet set) {
  std::vector<std::string> names;
  for (size_t i = 0; i < layout.axes().size(); ++i)
    if ((set >> i & 1) != 0) names.push_back(layout.axes()[i].name);
  return names;
}

// "data 1, tensor 0" for each of the ranks; axes of size 1 are omitted.
std::vector<std::string> titles_of(const MeshLayout& layout, const std::vector<int>& ranks) {
  std::vector<std::string> titles;
  for (const int rank : ranks) {
    const std::vector<int> places = layout.coordinates_of(rank);
    std::vector<std::string> where;
    for (size_t i = 0; i < places.size(); ++i)
      if (layout.axes()[i].size > 1)
        where.push_back(layout.axes()[i].name + " " + std::to_string(places[i]));
    titles.push_back(where.empty() ? "alone" : joined(where));
  }
  return titles;
}

MeshLayout checked_layout(std::vector<MeshAxis> axes, int ranks) {
  if (axes.size() > Mesh::kMostAxes)
    throw InvalidArgument("Mesh: has " + std::to_string(axes.size()) + " axes; give at most " +
                          std::to_string(Mesh::kMostAxes));
  return {std::move(axes), ranks};
}

}  // namespace

struct Mesh::State {
  MeshLayout layout;
  std::vector<int> coordinates;
  std::map<AxisSet, Communicator> groups;  // by the set without axes of size 1

  Communicator& group(AxisSet set) { return groups.at(without_lone(layout, set)); }
};

Mesh::Mesh(Communicator comm, std::vector<MeshAxis> axes) {
  const MeshLayout layout = checked_layout(std::move(axes), comm.size());
  state_ = std::make_shared<State>(
      State{.layout = layout, .coordinates = layout.coordinates_of(comm.rank()), .groups = {}});
  for (AxisSet set = 0; set <= all_axes(layout); ++set) {
    if (without_lone(layout, set) != set) continue;
    const std::vector<std::string> names = names_in(layout, set);
    Communicator group = *comm.split(layout.color_of(comm.rank(), names), comm.rank());
    group.name_ranks(titles_of(layout, layout.group_of(comm.rank(), names)));
    state_->groups.emplace(set, std::move(group));
  }
}

const MeshLayout& Mesh::layout() const {
  return state_->layout;
}

const std::vector<int>& Mesh::coordinates() const {
  return state_->coordinates;
}

int Mesh::place(std::string_view axis) const {
  return state_->coordinates[state_->layout.index_of(axis)];
}

Communicator& Mesh::operator[](std::string_view axis) const {
  return state_->group(AxisSet{1} << state_->layout.index_of(axis));
}

Communicator& Mesh::over(const std::vector<std::string>& axes) const {
  AxisSet set = 0;
  for (const std::string& axis : axes) set |= AxisSet{1} << state_->layout.index_of(axis);
  return state_->group(set);
}

std::string Mesh::str() const {
  const MeshLayout& layout = state_->layout;
  std::string text = "mesh " + layout.str() + " of " + std::to_string(layout.ranks()) +
                     (layout.ranks() == 1 ? " rank" : " ranks") + "\n";
  const MeshAxis& last = layout.axes().back();
  for (int first = 0; first < layout.ranks(); first += last.size) {
    const std::vector<int> place = layout.coordinates_of(first);
    std::vector<std::string> where;
    for (size_t i = 0; i + 1 < place.size(); ++i)
      where.push_back(layout.axes()[i].name + " " + std::to_string(place[i]));
    std::vector<int> row;
    for (int rank = first; rank < first + last.size; ++rank) row.push_back(rank);
    text += "  " + joined(where) + (where.empty() ? "" : ": ") + "along " + last.name +
            (row.size() == 1 ? " rank " : " ranks ") + joined(row) + "\n";
  }
  return text;
}

}  // namespace lockstep::inline v0
