// What is said about the rank that failed first. Pure.
#pragma once

#include <string>

#include "lockstep/launch/agent.h"
#include "lockstep/launch/call_board.h"

namespace lockstep::launch {

// "SIGKILL" for 9; "signal 40" for those without a name.
std::string signal_name(int signal);

// "#17 barrier at train.cpp:9 (had returned)"; "" when the rank had no communicator.
std::string describe_call(const BoardRecord& record);

// "killed by SIGKILL" or "exited with code 3".
std::string describe_end(const WorkerFailure& failure);

}  // namespace lockstep::launch
