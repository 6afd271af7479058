// Decides by rules how each tensor may be divided among ranks. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0::flat {

// Where a tensor may be cut.
enum class Cut : uint8_t {
  kElements,  // anywhere
  kRows,      // between two rows of dim 0, for block-wise quantised and row-wise optimizers
  kWhole,     // nowhere: it belongs to one rank, for Muon and Shampoo
};

// Selects the tensors that satisfy all conditions.
struct ShardRule {
  Cut cut = Cut::kElements;
  // Its name, or the name of a module that contains it, as modules_named() takes them:
  // "model.layers.*". Empty: any.
  std::vector<std::string> names = {};
  std::optional<int64_t> dims = std::nullopt;
  int64_t below = 0;  // it has fewer elements; 0: any number
  int64_t rows = 1;   // kRows: only after multiples of this many rows
};

// The first rule that selects a tensor applies. A tensor that no rule selects is divided anywhere.
struct ShardPolicy {
  std::vector<ShardRule> rules = {};
};

// The choices of a policy for each tensor.
struct ShardChoice {
  // The tensors that one rule selected: their number and their bytes.
  struct Taken {
    int64_t tensors = 0;
    int64_t bytes = 0;
  };
  std::vector<size_t> rule;     // of each tensor; rules.size() where no rule selected it
  std::vector<int64_t> grains;  // of each tensor, for plan_shards()
  std::vector<Taken> taken;     // by rule; the last one: by no rule
};

// Reads only names, shapes, strides and dtypes: tensors may be on the device meta.
// Throws: InvalidArgument for a rule that selects no tensor, a name that no tensor has (with the
// nearest), numbers out of range, and rows of a tensor with another outermost dim (a transposed
// one), which are not stretches of memory.
LOCKSTEP_API ShardChoice choose_shards(const ShardPolicy& policy, const NamedTensors& tensors);

// "rule 1 (rows of 'model.layers.*', 2 dims)", for messages; rule rules.size() is "no rule
// (anywhere)".
LOCKSTEP_API std::string name_of_rule(const ShardPolicy& policy, size_t rule);
// One line per rule, with the tensors and bytes that it selected; the last line is for the rest.
LOCKSTEP_API std::string to_text(const ShardPolicy& policy, const ShardChoice& choice);

}  // namespace lockstep::inline v0::flat
