// What the libraries that FakeCuda puts in the place of NCCL and the CUDA runtime call. The
// libraries hold a pointer to such a table each, and nothing else. Not a public header.
#pragma once

#include <cstddef>

namespace lockstep::inline v0::testing::fake {

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

// cudaIpcMemHandle_t and cudaIpcEventHandle_t.
struct IpcHandle {
  char bytes[64];
};

struct RuntimeTable {
  int (*device_count)(int* count);
  int (*get_device)(int* device);
  int (*set_device)(int device);
  int (*can_access_peer)(int* possible, int device, int peer);
  int (*stream_create)(void** stream);
  int (*stream_destroy)(void* stream);
  int (*stream_wait)(void* stream, void* event);
  int (*allocate)(void** data, size_t bytes);
  int (*free)(void* data);
  int (*copy)(void* to, const void* from, size_t bytes, void* stream);
  int (*export_memory)(IpcHandle* handle, void* data);
  int (*open_memory)(void** data, const IpcHandle& handle);
  int (*close_memory)(void* data);
  int (*event_create)(void** event, bool shared);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_query)(void* event);
  int (*event_synchronize)(void* event);
  int (*export_event)(IpcHandle* handle, void* event);
  int (*open_event)(void** event, const IpcHandle& handle);
};

}  // namespace lockstep::inline v0::testing::fake
