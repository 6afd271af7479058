#include <algorithm>
#include <charconv>
#include <sstream>

#include "lockstep/cli/plan/job.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::cli {
namespace {

constexpr int64_t kMostRanks = 4'194'304;

struct Axis {
  std::string name;
  int64_t size = 0;  // 0: open
};

const std::vector<std::string>& axis_names() {
  static const std::vector<std::string> names{"data",   "pipe",   "context",
                                              "expert", "tensor", "shard"};
  return names;
}

[[noreturn]] void refuse(const std::string& text, const std::string& what) {
  throw UsageError("--mesh is '" + text + "'; " + what);
}

Axis axis_of(const std::string& text, const std::string& word) {
  Axis axis{.name = word.substr(0, word.find('=')), .size = 0};
  const auto& names = axis_names();
  if (std::find(names.begin(), names.end(), axis.name) == names.end())
    refuse(text, "there is no axis '" + axis.name + "'" + suggestion(axis.name, names) +
                     "; give sizes of " + joined(names) + ", as data=8,pipe=4,tensor=2");
  if (word.find('=') == std::string::npos) return axis;
  const std::string number = word.substr(word.find('=') + 1);
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), axis.size);
  if (error != std::errc() || end != number.data() + number.size() || axis.size < 1 ||
      axis.size > kMostRanks)
    refuse(text, "give " + axis.name + " a number of ranks from 1 on");
  return axis;
}

std::vector<Axis> axes_of(const std::string& text) {
  std::vector<Axis> axes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const Axis axis = axis_of(text, word);
    for (const Axis& other : axes)
      if (other.name == axis.name) refuse(text, "it names " + axis.name + " twice; give it once");
    axes.push_back(axis);
  }
  if (axes.empty()) refuse(text, "give sizes of axes, as data=8,pipe=4,tensor=2");
  return axes;
}

// Fills the open axis, and compares the product with the ranks.
void fill(const std::string& text, int ranks, std::vector<Axis>* axes) {
  int64_t product = 1;
  Axis* open = nullptr;
  for (Axis& axis : *axes) {
    if (axis.size == 0) {
      if (open != nullptr) refuse(text, "two axes have no number; give one of them");
      open = &axis;
    } else if (product *= axis.size; product > kMostRanks) {
      refuse(text, "these are more than " + std::to_string(kMostRanks) + " ranks; give fewer");
    }
  }
  if (open != nullptr) {
    if (ranks == 0) refuse(text, "give " + open->name + " a number, or the ranks with --gpus");
    if (ranks % product != 0)
      refuse(text, std::to_string(ranks) + " ranks do not divide by " + std::to_string(product) +
                       "; give sizes whose product divides them");
    open->size = ranks / product;
  } else if (ranks != 0 && ranks != product) {
    refuse(text, "these are " + std::to_string(product) + " ranks, and --gpus is " +
                     std::to_string(ranks) + "; give sizes whose product is that");
  }
}

int* size_of(plan::Layout* layout, const std::string& axis) {
  if (axis == "data") return &layout->data;
  if (axis == "pipe") return &layout->pipe;
  if (axis == "context") return &layout->context;
  if (axis == "expert") return &layout->expert;
  return &layout->tensor;
}

}  // namespace

void read_mesh(const std::string& text, int ranks, plan::Layout* layout) {
  std::vector<Axis> axes = axes_of(text);
  fill(text, ranks, &axes);
  std::vector<std::string> order;
  for (const std::string& name : axis_names()) {
    const bool named =
        std::any_of(axes.begin(), axes.end(), [&](const Axis& axis) { return axis.name == name; });
    if (!named && name != "shard") order.push_back(name);
  }
  int shard = 0;
  for (const Axis& axis : axes) {
    if (axis.name == "shard") {
      shard = static_cast<int>(axis.size);
      if (&axis != &axes.back() || axes.size() != 2 || axes.front().name != "data")
        refuse(text, "shard stands behind data alone, as data=4,shard=8; give these two");
      continue;
    }
    *size_of(layout, axis.name) = static_cast<int>(axis.size);
    order.push_back(axis.name);
  }
  layout->order = order;
  if (shard > 0) {
    layout->data *= shard;
    layout->shard_ranks = shard;
  }
}

std::string mesh_text(const plan::Layout& layout) {
  const bool grouped = layout.shard_ranks > 1 && layout.shard_ranks < layout.data;
  std::string text;
  for (const std::string& axis : layout.order) {
    plan::Layout copy = layout;
    int size = *size_of(&copy, axis);
    if (axis == "data" && grouped) size /= layout.shard_ranks;
    if (size > 1) text += (text.empty() ? "" : ",") + axis + "=" + std::to_string(size);
  }
  if (grouped) text += (text.empty() ? "" : ",") + ("shard=" + std::to_string(layout.shard_ranks));
  return text.empty() ? "data=1" : text;
}

plan::Machine with_slow_link(const plan::Machine& machine, const std::string& text,
                             std::string* what) {
  const auto refuse_link = [&]() -> void {
    throw UsageError("--slow-link is '" + text +
                     "'; give between or inside and a share of the bandwidth, or a bandwidth: "
                     "between=0.5, inside=40GB/s");
  };
  const size_t equals = text.find('=');
  const std::string place = text.substr(0, equals);
  if (equals == std::string::npos || (place != "between" && place != "inside")) refuse_link();
  const std::string value = text.substr(equals + 1);
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const std::string unit(end, value.data() + value.size());
  // Not above 0 is also what is no number.
  if (error != std::errc() || !(number > 0) || number > 1e9 || (!unit.empty() && unit != "GB/s"))
    refuse_link();
  const plan::LinkPlace where =
      place == "inside" ? plan::LinkPlace::kInside : plan::LinkPlace::kBetween;
  *what = std::string("links ") + (place == "inside" ? "inside of hosts" : "between hosts") +
          " at " + (unit.empty() ? value + " of their bandwidth" : value);
  return unit.empty() ? plan::with_link_share(machine, where, number)
                      : plan::with_link_bandwidth(machine, where, number * 1e9);
}

}  // namespace lockstep::inline v0::cli
