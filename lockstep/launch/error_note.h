// A rank's report of its end to the agent that started it, in the file that TORCHELASTIC_ERROR_FILE
// names. torch's @record writes there too, only a message.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/env.h"

namespace lockstep::inline v0::launch {

struct ErrorNote {
  std::string message;  // "" where the rank left none
  // The message is complete: the agent shows it alone and once, and the ranks that leave it print
  // nothing.
  bool complete = false;
  bool consequence = false;  // of another rank's failure, which must be reported instead
  std::string device = {};   // "cuda:1": that device failed (device/failure.h); "": none
};

// Leaves the note for the agent. Returns false where no Lockstep agent exists, or the file cannot
// be written: the caller then reports on stderr.
bool leave_error_note(const ErrorNote& note, const EnvLookup& env);

// Parses such a file's text: the message in the JSON, or the start of the text if it is something
// else. Pure.
ErrorNote error_note_of(std::string_view text);

}  // namespace lockstep::inline v0::launch
