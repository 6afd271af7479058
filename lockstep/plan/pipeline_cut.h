// Where a model's list of units is cut into the chunks of a pipeline. Pure.
//
// A cut is how many units each chunk has, in order; none has none.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The cut itself, checked. All throw InvalidArgument in one line: an empty chunk, more or fewer units than
// there are.
LOCKSTEP_API std::vector<int> cut_by_counts(int units, const std::vector<int>& counts);

// `first`: of each chunk but the first the name of its first unit, in the model's order. Throw also for a
// name that is none or stands before the one before.
LOCKSTEP_API std::vector<int> cut_by_names(const std::vector<std::string>& units,
                                           const std::vector<std::string>& first);

// The cut into `chunks` whose dearest chunk is as cheap as can be, the sum of its units' costs, 0 or more
// each, in any unit: a layer's time, or its bytes. Of several such cuts the one with the least sum of squares of the
// chunks' costs, so that the others are alike, too; of several of those the one whose first chunks are the longest.
// Throws also for fewer units than chunks. Takes chunks * units^2 steps.
LOCKSTEP_API std::vector<int> cut_by_costs(std::span<const double> costs, int chunks);

// The unit with which each chunk begins, and one past the last: [0, ..., units].
LOCKSTEP_API std::vector<int> first_units(const std::vector<int>& cut);

}  // namespace lockstep::inline v0
