// CallRecord: the description of one call of a communicator. Plain data of fixed size, without
// pointers: it crosses processes and is read after its writer died.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::trace {

struct LOCKSTEP_API CallRecord {
  // Its number on its communicator, from 1; sends and receives count separately; 0: a remote call.
  uint64_t sequence = 0;
  uint64_t fingerprint = 0;  // equal on all ranks that make the same call
  uint64_t begun = 0;        // ticks() (core/ticks.h)
  uint64_t ended = 0;        // ticks(); 0: not ended
  int64_t elements = 0;
  int32_t root = -1;
  int32_t peer = -1;
  int32_t tag = 0;
  uint32_t line = 0;   // of `file`
  uint32_t group = 0;  // the communicator: the same number on all of its ranks
  // 0: a collective, 1: a send, 2: a receive, 3: a remote call, 4: one that is being served.
  uint32_t moving = 0;
  char op[16] = {};  // texts are NUL-terminated
  char reduce[8] = {};
  char dtype[12] = {};
  char file[44] = {};  // the last part of the path
  char note[48] = {};  // the library's name for the call: "bucket 3 of step 17"
};
static_assert(sizeof(CallRecord) == 192);

// Whether it is a remote call, which belongs to no communicator: recorded once it takes long, with
// its function and peer in `note`.
inline bool is_remote(const CallRecord& record) {
  return record.moving == 3 || record.moving == 4;
}

// "all_reduce: bucket 3 of step 17", or "all_reduce" without a note.
LOCKSTEP_API std::string title(const CallRecord& record);
// "all_reduce sum float32 x 421642 at trainer.cpp:120"; "rpc 'pull' on 'ps'".
LOCKSTEP_API std::string describe(const CallRecord& record);

}  // namespace lockstep::inline v0::trace
