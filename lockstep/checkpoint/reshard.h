// The same checkpoint in other files.
#pragma once

#include <filesystem>

namespace lockstep {

// Writes the checkpoint at `from` as the directory `to`, in place of a former one: its model and its
// optimizer's state in `files` files each, with an index, or, with 1, in one, as one rank writes
// them; everything else as it is. Any number of ranks goes on from either. `to` is another path.
//
// A model that lies in slices is written in whole tensors. Takes no more memory than one tensor where `files` is 1,
// else than one file's part: the rest is mapped. Throws as read_checkpoint() and write_checkpoint(), and
// InvalidArgument for less than 1 or more than 99999 files.
void reshard_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to,
                        int files);

}  // namespace lockstep
