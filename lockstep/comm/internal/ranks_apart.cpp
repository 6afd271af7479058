#include "lockstep/comm/internal/ranks_apart.h"

#include <algorithm>

namespace lockstep::inline v0 {
namespace {

// "rank 2 (on a)", "ranks 0 (on a) and 3 (on b)".
std::string ranks_text(const std::vector<int>& ranks, std::span<const std::string> hosts) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 < ranks.size() ? ", " : " and ";
    text += std::to_string(ranks[i]) + " (on " + hosts[static_cast<size_t>(ranks[i])] + ")";
  }
  return text;
}

}  // namespace

std::optional<RanksApart> find_apart(std::span<const uint64_t> hashes, size_t tensors) {
  RanksApart apart;
  const size_t ranks = tensors == 0 ? 0 : hashes.size() / tensors;
  for (size_t i = 0; i < tensors; ++i) {
    bool equal = true;
    for (size_t r = 1; r < ranks; ++r) equal &= hashes[r * tensors + i] == hashes[i];
    if (equal) continue;
    if (apart.count++ == 0) apart.tensor = i;
  }
  if (apart.count == 0) return std::nullopt;
  for (size_t r = 0; r < ranks; ++r) {
    const auto hash_of = [&](size_t rank) { return hashes[rank * tensors + apart.tensor]; };
    const auto side = std::find_if(apart.sides.begin(), apart.sides.end(), [&](const auto& those) {
      return hash_of(static_cast<size_t>(those.front())) == hash_of(r);
    });
    if (side == apart.sides.end())
      apart.sides.push_back({static_cast<int>(r)});
    else
      side->push_back(static_cast<int>(r));
  }
  std::stable_sort(apart.sides.begin(), apart.sides.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return apart;
}

std::string apart_text(const RanksApart& apart, const std::string& name, const std::string& when,
                       std::span<const std::string> hosts) {
  std::string text = "replicas differ" + (when.empty() ? "" : " at " + when) + ": '" + name + "' ";
  const size_t most = apart.sides.front().size();
  if (2 * most > hosts.size()) {
    std::vector<int> minority;
    for (size_t i = 1; i < apart.sides.size(); ++i)
      minority.insert(minority.end(), apart.sides[i].begin(), apart.sides[i].end());
    std::sort(minority.begin(), minority.end());
    text += "of " + ranks_text(minority, hosts) + " is not that of the other " +
            std::to_string(most) + " ranks";
  } else {
    for (size_t i = 0; i < apart.sides.size(); ++i)
      text += (i == 0                       ? "is one thing on "
               : i + 1 < apart.sides.size() ? ", another on "
                                            : " and another on ") +
              ranks_text(apart.sides[i], hosts);
    text += ", and no majority says which is right";
  }
  if (apart.count > 1) text += "; it is the first of " + std::to_string(apart.count) + " tensors";
  return text +
         "; a rank has taken another step than the others, or its memory or processor has failed: "
         "look at that host, and go on from a checkpoint of before";
}

}  // namespace lockstep::inline v0
