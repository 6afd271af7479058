// Collectives, messages and lists of arrays of the C interface.
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/c/communicator.h"
#include "lockstep/c/internal/arrays.h"
#include "lockstep/c/internal/guard.h"
#include "lockstep/c/internal/handles.h"
#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::c_api {
namespace {

ReduceOp reduction_of(int32_t reduction) {
  if (reduction < 0 || reduction >= kReduceOpCount) {
    throw InvalidArgument("there is no reduction " + std::to_string(reduction) +
                          "; give LOCKSTEP_SUM or another of communicator.h");
  }
  return static_cast<ReduceOp>(reduction);
}

// Runs start_one(communicator, array), and makes its Work the caller's.
template <typename F>
lockstep_status start(lockstep_comm* comm, const lockstep_array* array, lockstep_work** work,
                      const F& start_one) noexcept {
  return guarded([&] {
    Communicator& with = needed(comm, "comm").comm;
    lockstep_work*& result = needed(work, "work");
    result = nullptr;
    auto made = std::make_unique<lockstep_work>(lockstep_work{with, Work()});
    made->work = start_one(with, array);
    result = made.release();
  });
}

}  // namespace
}  // namespace lockstep::inline v0::c_api

using lockstep::Communicator;
using lockstep::c_api::caller;
using lockstep::c_api::guarded;
using lockstep::c_api::needed;
using lockstep::c_api::reduction_of;
using lockstep::c_api::tensor_of;
using lockstep::c_api::written_tensor;

lockstep_status lockstep_barrier(lockstep_comm* comm) {
  return guarded([&] { needed(comm, "comm").comm.barrier(caller()); });
}

lockstep_status lockstep_all_reduce(lockstep_comm* comm, const lockstep_array* array,
                                    int32_t reduction) {
  return guarded([&] {
    needed(comm, "comm")
        .comm.all_reduce(written_tensor(array, "array"), reduction_of(reduction), caller());
  });
}

lockstep_status lockstep_broadcast(lockstep_comm* comm, const lockstep_array* array, int32_t root) {
  return guarded(
      [&] { needed(comm, "comm").comm.broadcast(written_tensor(array, "array"), root, caller()); });
}

lockstep_status lockstep_reduce(lockstep_comm* comm, const lockstep_array* array, int32_t root,
                                int32_t reduction) {
  return guarded([&] {
    needed(comm, "comm")
        .comm.reduce(written_tensor(array, "array"), root, reduction_of(reduction), caller());
  });
}

lockstep_status lockstep_gather(lockstep_comm* comm, const lockstep_array* output,
                                const lockstep_array* input, int32_t root) {
  return guarded([&] {
    Communicator& with = needed(comm, "comm").comm;
    const at::Tensor parts = with.rank() == root ? written_tensor(output, "output") : at::Tensor();
    with.igather(parts, tensor_of(input, "input"), root, caller()).wait();
  });
}

lockstep_status lockstep_all_gather(lockstep_comm* comm, const lockstep_array* output,
                                    const lockstep_array* input) {
  return guarded([&] {
    needed(comm, "comm")
        .comm.iall_gather(written_tensor(output, "output"), tensor_of(input, "input"), caller())
        .wait();
  });
}

lockstep_status lockstep_scatter(lockstep_comm* comm, const lockstep_array* output,
                                 const lockstep_array* input, int32_t root) {
  return guarded([&] {
    Communicator& with = needed(comm, "comm").comm;
    const at::Tensor parts = with.rank() == root ? tensor_of(input, "input") : at::Tensor();
    with.scatter(written_tensor(output, "output"), parts, root, caller());
  });
}

lockstep_status lockstep_reduce_scatter(lockstep_comm* comm, const lockstep_array* output,
                                        const lockstep_array* input, int32_t reduction) {
  return guarded([&] {
    needed(comm, "comm")
        .comm
        .ireduce_scatter(written_tensor(output, "output"), tensor_of(input, "input"),
                         reduction_of(reduction), caller())
        .wait();
  });
}

lockstep_status lockstep_all_to_all(lockstep_comm* comm, const lockstep_array* output,
                                    const lockstep_array* input) {
  return guarded([&] {
    needed(comm, "comm")
        .comm.iall_to_all(written_tensor(output, "output"), tensor_of(input, "input"), caller())
        .wait();
  });
}

lockstep_status lockstep_send(lockstep_comm* comm, const lockstep_array* array, int32_t destination,
                              int32_t tag) {
  return guarded([&] {
    needed(comm, "comm").comm.send(tensor_of(array, "array"), destination, tag, caller());
  });
}

lockstep_status lockstep_recv(lockstep_comm* comm, const lockstep_array* array, int32_t source,
                              int32_t tag) {
  return guarded([&] {
    needed(comm, "comm").comm.recv(written_tensor(array, "array"), source, tag, caller());
  });
}

lockstep_status lockstep_all_reduce_start(lockstep_comm* comm, const lockstep_array* array,
                                          int32_t reduction, lockstep_work** work) {
  return lockstep::c_api::start(comm, array, work, [&](Communicator& c, const lockstep_array* a) {
    return c.iall_reduce(written_tensor(a, "array"), reduction_of(reduction), caller());
  });
}

lockstep_status lockstep_broadcast_start(lockstep_comm* comm, const lockstep_array* array,
                                         int32_t root, lockstep_work** work) {
  return lockstep::c_api::start(comm, array, work, [&](Communicator& c, const lockstep_array* a) {
    return c.ibroadcast(written_tensor(a, "array"), root, caller());
  });
}

lockstep_status lockstep_isend(lockstep_comm* comm, const lockstep_array* array,
                               int32_t destination, int32_t tag, lockstep_work** work) {
  return lockstep::c_api::start(comm, array, work, [&](Communicator& c, const lockstep_array* a) {
    return c.isend(tensor_of(a, "array"), destination, tag, caller());
  });
}

lockstep_status lockstep_irecv(lockstep_comm* comm, const lockstep_array* array, int32_t source,
                               int32_t tag, lockstep_work** work) {
  return lockstep::c_api::start(comm, array, work, [&](Communicator& c, const lockstep_array* a) {
    return c.irecv(written_tensor(a, "array"), source, tag, caller());
  });
}

lockstep_status lockstep_broadcast_arrays(lockstep_comm* comm, const lockstep_array* arrays,
                                          int32_t count, const char* const* names, int32_t root) {
  return guarded([&] {
    Communicator& with = needed(comm, "comm").comm;
    const std::vector<at::Tensor> tensors =
        lockstep::c_api::written_tensors(arrays, count, "arrays");
    lockstep::NamedTensorList named;
    for (size_t i = 0; i < tensors.size(); ++i) {
      named.emplace_back(
          names != nullptr ? &needed(names[i], "a name of arrays") : "array " + std::to_string(i),
          tensors[i]);
    }
    lockstep::check_same_on_all_ranks(with, named);
    lockstep::broadcast_coalesced(with, tensors, root, caller());
  });
}

lockstep_status lockstep_average_arrays(lockstep_comm* comm, const lockstep_array* arrays,
                                        int32_t count) {
  return guarded([&] {
    Communicator& with = needed(comm, "comm").comm;
    lockstep::all_reduce_coalesced(with, lockstep::c_api::written_tensors(arrays, count, "arrays"),
                                   lockstep::ReduceOp::kAvg, caller());
  });
}
