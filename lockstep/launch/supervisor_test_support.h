// Short forms of the supervisor's inputs and expected outputs, for its tests.
#pragma once

#include <chrono>

#include "lockstep/launch/supervisor.h"

namespace lockstep::inline v0::launch {

inline const Supervisor::Time kStart = Supervisor::Time() + std::chrono::hours(1);

inline RankExit exited(int rank, int code) {
  return {rank, {code, 0}};
}
inline RankExit killed(int rank, int signal) {
  return {rank, {0, signal}};
}
inline SignalOrder group(int rank, int signal) {
  return {rank, signal, true};
}

}  // namespace lockstep::inline v0::launch
