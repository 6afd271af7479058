// Writes the same checkpoint with another number of files.
#pragma once

#include <filesystem>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Writes the checkpoint at `from` as the directory `to`, in place of a former one: its model and
// its optimizer's state in `files` files each, with an index, or, with 1, in one, as one rank
// writes them; everything else is unchanged. Any number of ranks can continue from either. `to` is
// another path.
//
// A sliced model is written in whole tensors.
// Throws: as read_checkpoint() and write_checkpoint(), and InvalidArgument for less than 1 or more
// than 99999 files.
// Cost: the memory of one tensor where `files` is 1, otherwise of one file; the rest is mapped.
LOCKSTEP_API void reshard_checkpoint(const std::filesystem::path& from,
                                     const std::filesystem::path& to, int files);

}  // namespace lockstep::inline v0
