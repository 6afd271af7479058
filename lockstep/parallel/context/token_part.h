// The tokens of each sequence that each rank has, for models of unequal sequences
// (hooks/division.h): the rows of context_layout.h, the attention of context_attention.h.
#pragma once

#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/hooks/division.h"
#include "lockstep/parallel/context/context_layout.h"

namespace lockstep::inline v0 {

// For take_tokens() of a model or a part of one. Keeps a handle of `comm`, and sends nothing. All
// ranks of `comm` use such models alike; where lengths or ids differ they get Mismatch.
LOCKSTEP_API std::shared_ptr<const hooks::TokenPart> token_part(const Communicator& comm,
                                                                ContextWay way = ContextWay::kRing);

}  // namespace lockstep::inline v0
