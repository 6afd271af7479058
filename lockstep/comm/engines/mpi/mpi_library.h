// MPI, loaded at run time: Open MPI, MPICH and its family, or any library of the standard's own
// interface. Not a public header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/engines/mpi/mpi_abi.h"
#include "lockstep/core/env.h"

namespace lockstep::inline v0::mpi {

// The MPI functions that Lockstep calls.
struct Functions {
  Function<int(char*, int*)> get_library_version;
  Function<int(int*)> initialized;
  Function<int(int*)> finalized;
  Function<int(int*, char***, int, int*)> init_thread;
  Function<int(int*)> query_thread;
  Function<int(int*)> is_thread_main;
  Function<int()> finalize;
  Function<int(int, char*, int*)> error_string;
  Function<int(int, int*)> error_class;
  Function<int(Comm, int*)> comm_rank;
  Function<int(Comm, int*)> comm_size;
  Function<int(Comm, int*)> comm_test_inter;
  Function<int(Comm, Comm*, RequestHandle*)> comm_idup;
  Function<int(Comm*)> comm_free;
  Function<int(Comm, ErrorHandler)> comm_set_errhandler;
  Function<int(Comm, Group*)> comm_group;
  Function<int(Group, int, const int*, Group*)> group_incl;
  Function<int(Group*)> group_free;
  Function<int(Comm, Group, int, Comm*)> comm_create_group;

  Function<int(RequestHandle*, int*, Status*)> test;
  Function<int(const Status*, Datatype, int64_t*)> get_elements_x;  // MPI_Count is 64 bits wide
  Function<int(const void*, int, Datatype, int, int, Comm, RequestHandle*)> isend;
  Function<int(void*, int, Datatype, int, int, Comm, RequestHandle*)> irecv;
  Function<int(Comm, RequestHandle*)> ibarrier;
  Function<int(void*, int, Datatype, int, Comm, RequestHandle*)> ibcast;
  Function<int(const void*, void*, int, Datatype, Operator, int, Comm, RequestHandle*)> ireduce;
  Function<int(const void*, void*, int, Datatype, Operator, Comm, RequestHandle*)> iallreduce;
  Function<int(const void*, int, Datatype, void*, int, Datatype, int, Comm, RequestHandle*)>
      igather;
  Function<int(const void*, int, Datatype, void*, const int*, const int*, Datatype, int, Comm,
               RequestHandle*)>
      igatherv;
  Function<int(const void*, int, Datatype, void*, int, Datatype, Comm, RequestHandle*)> iallgather;
  Function<int(const void*, int, Datatype, void*, const int*, const int*, Datatype, Comm,
               RequestHandle*)>
      iallgatherv;
  Function<int(const void*, int, Datatype, void*, int, Datatype, int, Comm, RequestHandle*)>
      iscatter;
  Function<int(const void*, const int*, const int*, Datatype, void*, int, Datatype, int, Comm,
               RequestHandle*)>
      iscatterv;
  Function<int(const void*, void*, const int*, Datatype, Operator, Comm, RequestHandle*)>
      ireduce_scatter;
  Function<int(const void*, void*, int, Datatype, Operator, Comm, RequestHandle*)>
      ireduce_scatter_block;
  Function<int(const void*, const int*, const int*, Datatype, void*, const int*, const int*,
               Datatype, Comm, RequestHandle*)>
      ialltoallv;

  // Blocking, without a deadline: for measurements (lockstep bench), not for the backend.
  Function<int(Comm)> barrier;
  Function<int(const void*, int, Datatype, int, int, Comm)> send;
  Function<int(void*, int, Datatype, int, int, Comm, Status*)> recv;
  Function<int(void*, int, Datatype, int, Comm)> bcast;
  Function<int(const void*, void*, int, Datatype, Operator, int, Comm)> reduce;
  Function<int(const void*, void*, int, Datatype, Operator, Comm)> allreduce;
  Function<int(const void*, int, Datatype, void*, int, Datatype, int, Comm)> gather;
  Function<int(const void*, int, Datatype, void*, int, Datatype, Comm)> allgather;
  Function<int(const void*, int, Datatype, void*, int, Datatype, int, Comm)> scatter;
  Function<int(const void*, void*, int, Datatype, Operator, Comm)> reduce_scatter_block;
  Function<int(const void*, int, Datatype, void*, int, Datatype, Comm)> alltoall;
};

// The files to try, in order, and the error text for when none can be loaded. Pure.
struct LibraryChoice {
  std::vector<std::string> files;  // as for dlopen(3)
  std::string reason;              // "MPICH's mpirun started this process, but ..."
  std::string advice;              // what to install or to set
  bool asked_for = false;          // the user chose the library
};
// Order of choice: LOCKSTEP_MPI_LIBRARY, the library of the mpirun that started this process, any
// that is installed.
LibraryChoice choose_library(const EnvLookup& env);

// "Open MPI v4.1.4", "MPICH 4.0.2" from what MPI_Get_library_version() gives. Pure.
std::string short_version(const std::string& text);

// The library, loaded; never unloaded, since MPI cannot be. Immutable after construction.
class Library {
 public:
  // A library that the program itself has loaded comes before the choice, unless the user chose:
  // two MPIs in one process conflict. Throws a one-line LaunchError if none of the files can be
  // loaded, or if the library is neither Open MPI 4 or 5, nor of MPICH's family, nor of the
  // standard's interface, or is incomplete.
  explicit Library(const LibraryChoice& choice);
  // The library that the program is linked with, or has loaded. `function`: any function of it, as
  // the program sees it; null: the first MPI in the program's scope.
  // Throws: LaunchError, as above and where the program has no MPI.
  static Library of_program(const void* function);

  Functions call{};
  Handles handle{};
  void* in_place() const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): MPI's own value
    return reinterpret_cast<void*>(constants_.in_place);
  }
  // "Open MPI v4.1.4 (libmpi.so.40)".
  const std::string& name() const { return name_; }
  // Whether both are the same library, by whatever names it was found.
  bool same_as(const Library& other) const { return identity_ == other.identity_; }
  Abi abi() const { return abi_; }
  // The value for MPI_Init_thread.
  int thread_serialized() const { return constants_.thread_serialized; }

  int64_t received_bytes(const Status& status) const;
  // "MPI_ERR_TRUNCATE: message truncated".
  std::string error_text(int code) const;
  bool is_truncation(int code) const;
  bool is_null(Comm comm) const;
  // The communicator of an MPI_Fint: of the number that MPI_Comm_c2f() gives, MPI_Comm_toint() in
  // the standard's interface.
  Comm comm_of(int number) const;

 private:
  Library(void* library, std::string file);
  void identify(void* library);
  void load(void* library);

  Abi abi_ = Abi::kOpenMpi;
  Constants constants_{};
  Function<Comm(int)> comm_of_number_;
  const void* identity_ = nullptr;  // the address of one of its functions
  std::string file_;
  std::string name_;
};

}  // namespace lockstep::inline v0::mpi
