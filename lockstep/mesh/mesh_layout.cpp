#include "lockstep/mesh/mesh_layout.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace {

[[noreturn]] void refuse_mesh(const std::string& what) {
  throw InvalidArgument("Mesh: " + what);
}

bool is_axis_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), plain);
}

std::vector<std::string> names_of(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : axes) names.push_back(axis.name);
  return names;
}

void check_axes(const std::vector<MeshAxis>& axes) {
  if (axes.empty()) refuse_mesh("has no axes; give one or more, as data=2,shard=2");
  bool unknown = false;
  for (auto axis = axes.begin(); axis != axes.end(); ++axis) {
    if (!is_axis_name(axis->name))
      refuse_mesh("an axis is called '" + axis->name + "'; give letters, digits and '_'");
    if (std::any_of(axes.begin(), axis,
                    [&](const auto& other) { return other.name == axis->name; }))
      refuse_mesh("two axes are called '" + axis->name + "'; give each a name of its own");
    if (axis->size < 0)
      refuse_mesh("the size of axis '" + axis->name + "' is " + std::to_string(axis->size) +
                  "; give 1 or more, or 0 for what the others leave");
    if (axis->size == 0 && unknown) refuse_mesh("two axes have no size; give all but one a size");
    unknown = unknown || axis->size == 0;
  }
}

// Products are computed up to this limit, which cannot overflow.
constexpr int64_t kMost = 1'000'000'000;

// "data 2 x shard 3 = 6"
std::string product_text(const std::vector<MeshAxis>& axes, int64_t product) {
  std::vector<std::string> factors;
  for (const MeshAxis& axis : axes)
    if (axis.size != 0) factors.push_back(axis.name + " " + std::to_string(axis.size));
  return joined(factors, " x ") + " = " + std::to_string(product) +
         (product == kMost ? " or more" : "");
}

}  // namespace

std::vector<MeshAxis> parse_axes(std::string_view text) {
  std::vector<MeshAxis> axes;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, end);
    const size_t equals = std::min(item.find('='), item.size());
    MeshAxis axis{.name = std::string(item.substr(0, equals))};
    if (equals < item.size()) {
      const std::string_view number = item.substr(equals + 1);
      const auto [last, error] = std::from_chars(number.begin(), number.end(), axis.size);
      if (error != std::errc() || last != number.end() || axis.size < 1)
        refuse_mesh("'" + std::string(item) + "' is no axis; give a name and a size, as data=2");
    }
    axes.push_back(std::move(axis));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  check_axes(axes);
  return axes;
}

MeshLayout::MeshLayout(std::vector<MeshAxis> axes, int ranks)
    : axes_(std::move(axes)), ranks_(ranks) {
  check_axes(axes_);
  int64_t product = 1;
  MeshAxis* open = nullptr;
  for (MeshAxis& axis : axes_) {
    if (axis.size == 0) {
      open = &axis;
      continue;
    }
    product = std::min(product * axis.size, kMost);
  }
  if (open != nullptr && product <= ranks && ranks % product == 0) {
    open->size = static_cast<int>(ranks / product);
    product = ranks;
  }
  if (product != ranks)
    refuse_mesh(product_text(axes_, product) + ", but there are " + std::to_string(ranks) +
                (ranks == 1 ? " rank" : " ranks") + "; give sizes whose product is that");
}

size_t MeshLayout::index_of(std::string_view name) const {
  for (size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == name) return i;
  const auto names = names_of(axes_);
  const std::string near = nearest_name(name, names);
  refuse_mesh("there is no axis '" + std::string(name) + "'" +
              (near.empty() ? "" : " (did you mean " + near + "?)") + "; the axes are " +
              joined(names));
}

std::vector<int> MeshLayout::coordinates_of(int rank) const {
  if (rank < 0 || rank >= ranks_)
    refuse_mesh("there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks_));
  std::vector<int> coordinates(axes_.size());
  for (size_t i = axes_.size(); i-- > 0;) {
    coordinates[i] = rank % axes_[i].size;
    rank /= axes_[i].size;
  }
  return coordinates;
}

int MeshLayout::rank_at(std::span<const int> coordinates) const {
  if (coordinates.size() != axes_.size())
    refuse_mesh("a place has " + std::to_string(axes_.size()) + " coordinates, not " +
                std::to_string(coordinates.size()));
  int rank = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (coordinates[i] < 0 || coordinates[i] >= axes_[i].size)
      refuse_mesh("there is no place " + std::to_string(coordinates[i]) + " on axis '" +
                  axes_[i].name + "' of " + std::to_string(axes_[i].size));
    rank = rank * axes_[i].size + coordinates[i];
  }
  return rank;
}

std::vector<bool> MeshLayout::chosen(std::span<const std::string> axes) const {
  std::vector<bool> is_chosen(axes_.size());
  for (const std::string& name : axes) {
    const size_t index = index_of(name);
    if (is_chosen[index]) refuse_mesh("axis '" + name + "' is named twice");
    is_chosen[index] = true;
  }
  return is_chosen;
}

int MeshLayout::color_of(int rank, std::span<const std::string> axes) const {
  const std::vector<bool> is_chosen = chosen(axes);
  const std::vector<int> coordinates = coordinates_of(rank);
  int color = 0;
  for (size_t i = 0; i < axes_.size(); ++i)
    if (!is_chosen[i]) color = color * axes_[i].size + coordinates[i];
  return color;
}

std::vector<int> MeshLayout::group_of(int rank, std::span<const std::string> axes) const {
  const int color = color_of(rank, axes);
  std::vector<int> group;
  for (int other = 0; other < ranks_; ++other)
    if (color_of(other, axes) == color) group.push_back(other);
  return group;
}

std::string MeshLayout::str() const {
  std::vector<std::string> parts;
  for (const MeshAxis& axis : axes_) parts.push_back(axis.name + "=" + std::to_string(axis.size));
  return joined(parts);
}

}  // namespace lockstep::inline v0
