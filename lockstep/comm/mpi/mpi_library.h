// Open MPI, loaded at run time: its entry points and handles, declared here so that no mpi.h is
// needed to build and one binary runs on machines with and without it. Not a public header.
//
// MPI leaves the binary interface to the implementation. What is below is Open MPI's: handles are
// pointers to objects that the library exports, constants as in its documentation of versions 4 and
// 5 (one interface, soname libmpi.so.40). MpiLibrary refuses any other implementation.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::mpi {

// Handles.
using Comm = void*;
using Datatype = void*;
using Operator = void*;
using RequestHandle = void*;
using Group = void*;
using ErrorHandler = void*;

// MPI_Status: its third to fifth fields are Open MPI's own.
struct Status {
  int source = 0;
  int tag = 0;
  int error = 0;
  int cancelled = 0;
  size_t bytes = 0;  // received
};

inline constexpr int kSuccess = 0;
inline constexpr int kErrorTruncate = 15;  // MPI_ERR_TRUNCATE: a message longer than its receive
inline constexpr int kThreadFunneled = 1;
inline constexpr int kThreadSerialized = 2;
inline void* const kInPlace = reinterpret_cast<void*>(1);

// The functions that Lockstep calls. Buffers are void* where MPI says const void*: the same to the
// callee.
struct Functions {
  int (*get_library_version)(char*, int*);
  int (*initialized)(int*);
  int (*finalized)(int*);
  int (*init_thread)(int*, char***, int, int*);
  int (*query_thread)(int*);
  int (*finalize)();
  int (*error_string)(int, char*, int*);
  int (*error_class)(int, int*);
  int (*comm_rank)(Comm, int*);
  int (*comm_size)(Comm, int*);
  int (*comm_idup)(Comm, Comm*, RequestHandle*);
  int (*comm_free)(Comm*);
  int (*comm_set_errhandler)(Comm, ErrorHandler);
  int (*comm_group)(Comm, Group*);
  int (*group_incl)(Group, int, const int*, Group*);
  int (*group_free)(Group*);
  int (*comm_create_group)(Comm, Group, int, Comm*);

  int (*test)(RequestHandle*, int*, Status*);
  int (*isend)(const void*, int, Datatype, int, int, Comm, RequestHandle*);
  int (*irecv)(void*, int, Datatype, int, int, Comm, RequestHandle*);
  int (*ibarrier)(Comm, RequestHandle*);
  int (*ibcast)(void*, int, Datatype, int, Comm, RequestHandle*);
  int (*ireduce)(const void*, void*, int, Datatype, Operator, int, Comm, RequestHandle*);
  int (*iallreduce)(const void*, void*, int, Datatype, Operator, Comm, RequestHandle*);
  int (*igather)(const void*, int, Datatype, void*, int, Datatype, int, Comm, RequestHandle*);
  int (*igatherv)(const void*, int, Datatype, void*, const int*, const int*, Datatype, int, Comm,
                  RequestHandle*);
  int (*iallgather)(const void*, int, Datatype, void*, int, Datatype, Comm, RequestHandle*);
  int (*iallgatherv)(const void*, int, Datatype, void*, const int*, const int*, Datatype, Comm,
                     RequestHandle*);
  int (*iscatter)(const void*, int, Datatype, void*, int, Datatype, int, Comm, RequestHandle*);
  int (*iscatterv)(const void*, const int*, const int*, Datatype, void*, int, Datatype, int, Comm,
                   RequestHandle*);
  int (*ireduce_scatter)(const void*, void*, const int*, Datatype, Operator, Comm, RequestHandle*);
  int (*ireduce_scatter_block)(const void*, void*, int, Datatype, Operator, Comm, RequestHandle*);
  int (*ialltoallv)(const void*, const int*, const int*, Datatype, void*, const int*, const int*,
                    Datatype, Comm, RequestHandle*);

  // Blocking, without a deadline: for measurements (lockstep bench), not for the backend.
  int (*barrier)(Comm);
  int (*send)(const void*, int, Datatype, int, int, Comm);
  int (*recv)(void*, int, Datatype, int, int, Comm, Status*);
  int (*bcast)(void*, int, Datatype, int, Comm);
  int (*reduce)(const void*, void*, int, Datatype, Operator, int, Comm);
  int (*allreduce)(const void*, void*, int, Datatype, Operator, Comm);
  int (*gather)(const void*, int, Datatype, void*, int, Datatype, int, Comm);
  int (*allgather)(const void*, int, Datatype, void*, int, Datatype, Comm);
  int (*scatter)(const void*, int, Datatype, void*, int, Datatype, int, Comm);
  int (*reduce_scatter_block)(const void*, void*, int, Datatype, Operator, Comm);
  int (*alltoall)(const void*, int, Datatype, void*, int, Datatype, Comm);
};

struct Handles {
  Comm world;
  RequestHandle request_null;
  ErrorHandler errors_return;
  Datatype byte, int8, uint8, int16, uint16, int32, int64, float32, float64;
  Operator sum, product, min, max, bit_and, bit_or, bit_xor;
};

// The library, loaded; never unloaded, since MPI cannot be. Immutable after construction.
class Library {
 public:
  // `file` as for dlopen(3). Throws LaunchError of one line: not there (with the package to
  // install), not Open MPI 4 or 5, or incomplete.
  explicit Library(const std::string& file = "libmpi.so.40");

  Functions call{};
  Handles handle{};
  const std::string& version() const { return version_; }  // "Open MPI v4.1.4"

  // "MPI_ERR_TRUNCATE: message truncated".
  std::string error_text(int code) const;
  bool is_truncation(int code) const;

 private:
  std::string version_;
};

}  // namespace lockstep::mpi
