// What the tests of the supervisor tell it, and what they expect of it, in short.
#pragma once

#include <chrono>

#include "lockstep/launch/supervisor.h"

namespace lockstep::launch {

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

}  // namespace lockstep::launch
