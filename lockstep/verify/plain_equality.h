// Equality for models of libtorch's modules alone (model/plain_models.h), which ParallelModel
// divides from outside.
#pragma once

#include "lockstep/products/parallelism.h"
#include "lockstep/verify/equality.h"

namespace lockstep::inline v0 {

enum class PlainModel : uint8_t { kDecoder, kEncoder, kVision };

// Throws: InvalidArgument for what no plain model takes, before anything is trained.
void check(PlainModel model, const Parallelism& how, int ranks);
EqualityRun train_whole(PlainModel model, const EqualityOptions& options = {});
EqualityRun train_divided(PlainModel model, const Parallelism& how, int ranks,
                          const EqualityOptions& options = {});

}  // namespace lockstep::inline v0
