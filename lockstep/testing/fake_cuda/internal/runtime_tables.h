// What the libraries that FakeCuda puts in the place of NCCL and the CUDA runtime call. The
// libraries hold a pointer to such a table each, and nothing else. Not a public header.
#pragma once

#include <cstddef>

namespace lockstep::testing::fake {

struct NcclId {
  char bytes[128];
};

struct NcclTable {
  int (*get_unique_id)(NcclId*);
  int (*comm_init)(void** comm, int size, const NcclId& id, int rank, bool blocking);
  int (*async_error)(void* comm, int* result);
  int (*abort)(void* comm);
  int (*group_start)();
  int (*group_end)();
  // `op`: of Operation below; `peer`: or root.
  int (*call)(int op, const void* from, void* to, size_t count, int dtype, int reduce, int peer,
              void* comm, void* stream);
};

enum NcclOperation : int {
  kNcclBroadcast,
  kNcclReduce,
  kNcclAllReduce,
  kNcclAllGather,
  kNcclReduceScatter,
  kNcclSend,
  kNcclRecv,
};

struct RuntimeTable {
  int (*stream_create)(void** stream);
  int (*stream_destroy)(void* stream);
};

}  // namespace lockstep::testing::fake
