// The tokens of each sequence that each rank has, for models that compute rows of unequal sequences (hooks/division.h), by
// the rows of context_layout.h and the attention of context_attention.h.
#pragma once

#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/hooks/division.h"
#include "lockstep/parallel/context/context_layout.h"

namespace lockstep {

// For take_tokens() of a model or of a part of one. Keeps a handle of `comm`; sends nothing itself. Models with it are
// used on all ranks of `comm` alike; ranks whose lengths or ids differ get Mismatch that names them.
std::shared_ptr<const hooks::TokenPart> token_part(const Communicator& comm,
                                                   ContextWay way = ContextWay::kRing);

}  // namespace lockstep
