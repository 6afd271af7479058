// RanksApart: which ranks hold something else than the others, told from hashes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

struct RanksApart {
  size_t tensor = 0;  // the first that is not the same on all ranks
  size_t count = 0;   // how many are not
  // Ranks that hold the same of that tensor, each list in order: the longest list first, then that of the
  // lowest rank.
  std::vector<std::vector<int>> sides;
};

// hashes[r * tensors + i] is rank r's of tensor i. Nothing where all ranks hold the same.
std::optional<RanksApart> find_apart(std::span<const uint64_t> hashes, size_t tensors);

// One line that names the ranks in the minority, or all of them where there is no majority. `name`: the
// tensor's; `when`: "step 300", or ""; `hosts`: each rank's.
std::string apart_text(const RanksApart& apart, const std::string& name, const std::string& when,
                       std::span<const std::string> hosts);

}  // namespace lockstep
