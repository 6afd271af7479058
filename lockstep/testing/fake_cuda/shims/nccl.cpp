// NCCL's functions, as programs find them in libnccl.so.2.
#include "lockstep/testing/fake_cuda/internal/runtime_tables.h"

using lockstep::testing::fake::NcclId;
using lockstep::testing::fake::NcclTable;
namespace fake = lockstep::testing::fake;

extern "C" {

const NcclTable* lockstep_fake_nccl = nullptr;  // FakeCuda's

// The head of ncclConfig_t.
struct FakeNcclConfig {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
const char* ncclGetErrorString(int result) {
  switch (result) {
    case 0:
      return "no error";
    case 4:
      return "invalid argument";
    case 5:
      return "invalid usage: Duplicate GPU detected, or another call that NCCL refuses";
    case 6:
      return "remote process exited or there was a network error";
    case 7:
      return "NCCL operation in progress";
    default:
      return "internal error";
  }
}
int ncclGetUniqueId(NcclId* id) {
  return lockstep_fake_nccl->get_unique_id(id);
}
int ncclCommInitRank(void** comm, int size, NcclId id, int rank) {
  return lockstep_fake_nccl->comm_init(comm, size, id, rank, true);
}
int ncclCommInitRankConfig(void** comm, int size, NcclId id, int rank, FakeNcclConfig* config) {
  return lockstep_fake_nccl->comm_init(comm, size, id, rank,
                                       config == nullptr || config->blocking != 0);
}
int ncclCommGetAsyncError(void* comm, int* result) {
  return lockstep_fake_nccl->async_error(comm, result);
}
int ncclCommAbort(void* comm) {
  return lockstep_fake_nccl->abort(comm);
}
int ncclCommDestroy(void* comm) {
  return lockstep_fake_nccl->abort(comm);
}
int ncclGroupStart() {
  return lockstep_fake_nccl->group_start();
}
int ncclGroupEnd() {
  return lockstep_fake_nccl->group_end();
}

int ncclBroadcast(const void* from, void* to, size_t count, int dtype, int root, void* comm,
                  void* stream) {
  return lockstep_fake_nccl->call(fake::kNcclBroadcast, from, to, count, dtype, 0, root, comm,
                                  stream);
}
int ncclReduce(const void* from, void* to, size_t count, int dtype, int reduce, int root,
               void* comm, void* stream) {
  return lockstep_fake_nccl->call(fake::kNcclReduce, from, to, count, dtype, reduce, root, comm,
                                  stream);
}
int ncclAllReduce(const void* from, void* to, size_t count, int dtype, int reduce, void* comm,
                  void* stream) {
  return lockstep_fake_nccl->call(fake::kNcclAllReduce, from, to, count, dtype, reduce, 0, comm,
                                  stream);
}
int ncclAllGather(const void* from, void* to, size_t count, int dtype, void* comm, void* stream) {
  return lockstep_fake_nccl->call(fake::kNcclAllGather, from, to, count, dtype, 0, 0, comm, stream);
}
int ncclReduceScatter(const void* from, void* to, size_t count, int dtype, int reduce, void* comm,
                      void* stream) {
  return lockstep_fake_nccl->call(fake::kNcclReduceScatter, from, to, count, dtype, reduce, 0, comm,
                                  stream);
}
int ncclSend(const void* from, size_t count, int dtype, int peer, void* comm, void* stream) {
  return lockstep_fake_nccl->call(fake::kNcclSend, from, nullptr, count, dtype, 0, peer, comm,
                                  stream);
}
int ncclRecv(void* to, size_t count, int dtype, int peer, void* comm, void* stream) {
  return lockstep_fake_nccl->call(fake::kNcclRecv, nullptr, to, count, dtype, 0, peer, comm,
                                  stream);
}

}  // extern "C"
