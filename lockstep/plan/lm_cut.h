// Where a language model is cut into the chunks of a pipeline, unless the caller says otherwise. Its units
// are the embeddings, the layers, the last norm and the head (model/transformer_lm.h). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The units of each chunk, balanced by the multiplications for a token: `layer` of each layer,
// `head` of the head, none of the others. Throws as cut_by_costs() does.
LOCKSTEP_API std::vector<int> lm_cut(int64_t layers, double layer, double head, int chunks);

// How many layers each chunk of such a cut has.
LOCKSTEP_API std::vector<int64_t> layers_of_cut(const std::vector<int>& cut, int64_t layers);

}  // namespace lockstep::inline v0
