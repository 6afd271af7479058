// How each tensor may be divided among ranks, by rules: pure decisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/flat/named_tensors.h"

namespace lockstep::flat {

enum class Cut : uint8_t {
  kElements,  // anywhere
  kRows,      // between two rows of dim 0, as block-wise quantised and row-wise optimizers need it
  kWhole,     // nowhere: it is one rank's, as Muon and Shampoo need it
};

// Takes the tensors that fit all that is given.
struct ShardRule {
  Cut cut = Cut::kElements;
  // Its name, or the name of a module that it is below, as modules_named() takes them: "model.layers.*".
  // Empty: any.
  std::vector<std::string> names = {};
  std::optional<int64_t> dims = std::nullopt;
  int64_t below = 0;  // it has fewer elements; 0: any number
  int64_t rows = 1;   // kRows: only after every so many rows
};

// The first rule that takes a tensor decides. What none takes is cut anywhere.
struct ShardPolicy {
  std::vector<ShardRule> rules = {};
};

struct ShardChoice {
  struct Taken {
    int64_t tensors = 0;
    int64_t bytes = 0;
  };
  std::vector<size_t> rule;     // of each tensor; rules.size() where none took it
  std::vector<int64_t> grains;  // of each tensor, as plan_shards() takes them
  std::vector<Taken> taken;     // by rule; the last: by none
};

// Only names, shapes, strides and dtypes are read: tensors may be on the device meta. Throws
// InvalidArgument: a rule that takes no tensor, a name that no tensor has (with the nearest), numbers out of
// range, rows of a tensor that lies with another dim outermost (a transposed one), which are not stretches of memory.
ShardChoice choose_shards(const ShardPolicy& policy, const NamedTensors& tensors);

// "rule 1 (rows of 'model.layers.*', 2 dims)", for messages; rule rules.size() is "no rule (anywhere)".
std::string name_of_rule(const ShardPolicy& policy, size_t rule);
// A line a rule, with the tensors and the bytes that it took; the last for what none took.
std::string to_text(const ShardPolicy& policy, const ShardChoice& choice);

}  // namespace lockstep::flat
