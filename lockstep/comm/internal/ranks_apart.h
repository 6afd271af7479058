// RanksApart: which ranks hold different values, found from hashes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline v0 {

struct RanksApart {
  size_t tensor = 0;  // the first that differs between ranks
  size_t count = 0;   // the number of tensors that differ
  // Ranks with the same value of that tensor, each list in order. The longest list comes first,
  // then the one with the lowest rank.
  std::vector<std::vector<int>> sides;
};

// hashes[r * tensors + i] is rank r's hash of tensor i. Returns nullopt where all ranks hold the
// same.
std::optional<RanksApart> find_apart(std::span<const uint64_t> hashes, size_t tensors);

// One line that names the ranks in the minority, or all of them where there is no majority. `name`
// is the tensor's name; `when` is "step 300" or ""; `hosts` are the ranks' hosts.
std::string apart_text(const RanksApart& apart, const std::string& name, const std::string& when,
                       std::span<const std::string> hosts);

}  // namespace lockstep::inline v0
