// What a rank says of its end to the agent that started it, in the file that
// TORCHELASTIC_ERROR_FILE names. torch's @record writes there too, only a message.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/env.h"

namespace lockstep::launch {

struct ErrorNote {
  std::string message;       // "" where the rank left none
  bool complete = false;     // the message says all there is to say: the agent shows it alone,
                             // once, and the ranks that leave it are silent
  bool consequence = false;  // of another rank's failure, which is the one to tell of
};

// Leaves it for the agent. False where there is no agent of Lockstep's, or the file cannot be
// written: the caller says it on stderr then.
bool leave_error_note(const ErrorNote& note, const EnvLookup& env);

// Reads such a file's text: the message in the JSON, or the start of the text if it is something
// else. Pure.
ErrorNote error_note_of(std::string_view text);

}  // namespace lockstep::launch
