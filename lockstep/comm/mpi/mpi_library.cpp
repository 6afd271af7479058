#include "lockstep/comm/mpi/mpi_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "lockstep/core/errors.h"

namespace lockstep::mpi {
namespace {

void* find_symbol(void* library, const std::string& file, const char* name) {
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr) {
    throw LaunchError(file + " has no " + name +
                      ": it is no Open MPI 4 or 5, the only one that backend mpi knows");
  }
  return symbol;
}

}  // namespace

Library::Library(const std::string& file) {
  // RTLD_GLOBAL: Open MPI's plug-ins look for its symbols in the global scope.
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    throw LaunchError("backend mpi needs Open MPI, but " +
                      std::string(reason != nullptr ? reason : file + " cannot be loaded") +
                      "; install it (Debian, Ubuntu: apt install openmpi-bin libopenmpi3) or add "
                      "its folder to LD_LIBRARY_PATH");
  }
  const auto load = [&](auto& target, const char* name) {
    target = reinterpret_cast<std::remove_reference_t<decltype(target)>>(
        find_symbol(library, file, name));
  };
  load(call.get_library_version, "MPI_Get_library_version");
  char text[4096] = {};
  int length = 0;
  call.get_library_version(text, &length);
  version_.assign(text, static_cast<size_t>(length));
  version_ = version_.substr(0, version_.find(','));
  if (!version_.starts_with("Open MPI v4.") && !version_.starts_with("Open MPI v5.")) {
    throw LaunchError("backend mpi knows Open MPI 4 and 5, but " + file + " is " + version_ +
                      "; put one of those first on LD_LIBRARY_PATH");
  }

  load(call.initialized, "MPI_Initialized");
  load(call.finalized, "MPI_Finalized");
  load(call.init_thread, "MPI_Init_thread");
  load(call.query_thread, "MPI_Query_thread");
  load(call.finalize, "MPI_Finalize");
  load(call.error_string, "MPI_Error_string");
  load(call.error_class, "MPI_Error_class");
  load(call.comm_rank, "MPI_Comm_rank");
  load(call.comm_size, "MPI_Comm_size");
  load(call.comm_idup, "MPI_Comm_idup");
  load(call.comm_free, "MPI_Comm_free");
  load(call.comm_set_errhandler, "MPI_Comm_set_errhandler");
  load(call.comm_group, "MPI_Comm_group");
  load(call.group_incl, "MPI_Group_incl");
  load(call.group_free, "MPI_Group_free");
  load(call.comm_create_group, "MPI_Comm_create_group");
  load(call.test, "MPI_Test");
  load(call.isend, "MPI_Isend");
  load(call.irecv, "MPI_Irecv");
  load(call.ibarrier, "MPI_Ibarrier");
  load(call.ibcast, "MPI_Ibcast");
  load(call.ireduce, "MPI_Ireduce");
  load(call.iallreduce, "MPI_Iallreduce");
  load(call.igather, "MPI_Igather");
  load(call.igatherv, "MPI_Igatherv");
  load(call.iallgather, "MPI_Iallgather");
  load(call.iallgatherv, "MPI_Iallgatherv");
  load(call.iscatter, "MPI_Iscatter");
  load(call.iscatterv, "MPI_Iscatterv");
  load(call.ireduce_scatter, "MPI_Ireduce_scatter");
  load(call.ireduce_scatter_block, "MPI_Ireduce_scatter_block");
  load(call.ialltoallv, "MPI_Ialltoallv");
  load(call.barrier, "MPI_Barrier");
  load(call.send, "MPI_Send");
  load(call.recv, "MPI_Recv");
  load(call.bcast, "MPI_Bcast");
  load(call.reduce, "MPI_Reduce");
  load(call.allreduce, "MPI_Allreduce");
  load(call.gather, "MPI_Gather");
  load(call.allgather, "MPI_Allgather");
  load(call.scatter, "MPI_Scatter");
  load(call.reduce_scatter_block, "MPI_Reduce_scatter_block");
  load(call.alltoall, "MPI_Alltoall");

  load(handle.world, "ompi_mpi_comm_world");
  load(handle.request_null, "ompi_request_null");
  load(handle.errors_return, "ompi_mpi_errors_return");
  load(handle.byte, "ompi_mpi_byte");
  load(handle.int8, "ompi_mpi_int8_t");
  load(handle.uint8, "ompi_mpi_uint8_t");
  load(handle.int16, "ompi_mpi_int16_t");
  load(handle.uint16, "ompi_mpi_uint16_t");
  load(handle.int32, "ompi_mpi_int32_t");
  load(handle.int64, "ompi_mpi_int64_t");
  load(handle.float32, "ompi_mpi_float");
  load(handle.float64, "ompi_mpi_double");
  load(handle.sum, "ompi_mpi_op_sum");
  load(handle.product, "ompi_mpi_op_prod");
  load(handle.min, "ompi_mpi_op_min");
  load(handle.max, "ompi_mpi_op_max");
  load(handle.bit_and, "ompi_mpi_op_band");
  load(handle.bit_or, "ompi_mpi_op_bor");
  load(handle.bit_xor, "ompi_mpi_op_bxor");
}

std::string Library::error_text(int code) const {
  char text[4096] = {};
  int length = 0;
  call.error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

bool Library::is_truncation(int code) const {
  int kind = 0;
  call.error_class(code, &kind);
  return kind == kErrorTruncate;
}

}  // namespace lockstep::mpi
