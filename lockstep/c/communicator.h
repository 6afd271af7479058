// Communicators of Lockstep's C interface: groups of ranks, their collectives, messages and the
// job's store. Users include lockstep.h.
//
// Common to all functions here:
// - A function marked "Collective" is called by every rank of the group, in the same order and with
//   the same arguments but for the data.
// - Arrays are of any strides, and may be empty. "Parts" are taken along the first dimension. An
//   output does not overlap an input, unless said so.
// - Every wait ends at the communicator's time-out.
// - INVALID_ARGUMENT comes before anything is sent and leaves the communicator as it was. After
//   TIMEOUT, PEER_LOST and MISMATCH it is broken: the contents of the arrays are undefined, and
//   every later call returns the same error at once. Free it, and make another or end.
// - NULL for a handle, an array or a result is INVALID_ARGUMENT on that rank at once, as every
//   mistake is. The other ranks, for whom it has not called, wait until it calls rightly, or until
//   their time-out, whose text names it.
// - Thread-safety: one thread at a time for a communicator and everything made from it, but for
//   lockstep_comm_abort(). A second thread inside a call gets INVALID_ARGUMENT.
#ifndef LOCKSTEP_C_COMMUNICATOR_H
#define LOCKSTEP_C_COMMUNICATOR_H

#include "lockstep/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lockstep_comm lockstep_comm;    // a rank's handle of a group
typedef struct lockstep_work lockstep_work;    // a non-blocking operation
typedef struct lockstep_store lockstep_store;  // a connection to the job's store

typedef struct lockstep_init_options lockstep_init_options;  // of lockstep_init()
// How lockstep_init() joins the job. Start from LOCKSTEP_INIT_OPTIONS. Texts are copied; NULL is
// the default.
struct lockstep_init_options {
  size_t struct_size;  // of the struct that the caller was compiled with
  // "shm", "tcp", "hierarchical", "gloo", "mpi", "nccl", "local". NULL: LOCKSTEP_BACKEND, or what
  // fits the job.
  const char* backend;
  // "env://": what lockstep run, torchrun, mpirun or srun have set; a rank alone where nothing is
  // set. "tcp://host:port", "file:///path": then rank and world_size are needed. NULL: env://.
  const char* init_method;
  const char* secret;      // that the ranks prove to each other; needed for tcp://
  const char* device;      // "cpu", "cuda", "cuda:1", "auto"; NULL: LOCKSTEP_DEVICE
  double timeout_seconds;  // of every wait; 0: 600
  int32_t rank;            // -1: from the environment
  int32_t world_size;      // -1: from the environment
};

// The defaults of lockstep_init_options.
#define LOCKSTEP_INIT_OPTIONS {sizeof(lockstep_init_options), NULL, NULL, NULL, NULL, 0, -1, -1}

// Joins the job and returns once all its ranks are connected. `options` may be NULL. `*comm` is the
// caller's, to be freed with lockstep_comm_free(); NULL after an error.
// Collective: all ranks of the job.
// Errors: INVALID_ARGUMENT, STORE_ERROR, TIMEOUT (names the ranks that did not come), PEER_LOST.
LOCKSTEP_C_EXPORT lockstep_status lockstep_init(const lockstep_init_options* options,
                                                lockstep_comm** comm);

// The communicator of all processes of an MPI communicator, in its order: an application's own
// MPI_COMM_WORLD or any part of it. `mpi_comm` is its MPI_Fint, which Fortran has (MPI_VAL of a
// type(MPI_Comm)); mpi.h of this folder takes an MPI_Comm. The application owns MPI: it is neither
// initialised nor finalised here, and `mpi_comm` is used once, to duplicate it. By default MPI only
// introduces the ranks to each other, and Lockstep's own engines carry the data; backend "mpi" has
// MPI carry it. Of `options`, which may be NULL, backend, device and timeout_seconds count.
// `mpi_function` is the address of any MPI function as the program sees it; NULL: the MPI in the
// program's own scope. MPI_THREAD_FUNNELED suffices. lockstep/comm/from_mpi.h says more.
// Collective: all processes of the MPI communicator.
// Errors: LAUNCH_ERROR (the process has no MPI, or an unknown one), INVALID_ARGUMENT (MPI is not
// initialised, or is finalised; no communicator; an option), STORE_ERROR, TIMEOUT, PEER_LOST.
LOCKSTEP_C_EXPORT lockstep_status lockstep_init_from_mpi_fint(int32_t mpi_comm,
                                                              const lockstep_init_options* options,
                                                              const void* mpi_function,
                                                              lockstep_comm** comm);

// Frees this rank's handle. Its peers' pending and later waits on this rank return PEER_LOST.
// Models that train with it, and works, keep the group alive until they are freed too. NULL does
// nothing.
LOCKSTEP_C_EXPORT lockstep_status lockstep_comm_free(lockstep_comm* comm);

// This rank's place in the group. "Local" counts the ranks of the same host.
LOCKSTEP_C_EXPORT lockstep_status lockstep_comm_rank(const lockstep_comm* comm, int32_t* rank);
LOCKSTEP_C_EXPORT lockstep_status lockstep_comm_size(const lockstep_comm* comm, int32_t* size);
LOCKSTEP_C_EXPORT lockstep_status lockstep_comm_local_rank(const lockstep_comm* comm,
                                                           int32_t* rank);
LOCKSTEP_C_EXPORT lockstep_status lockstep_comm_local_size(const lockstep_comm* comm,
                                                           int32_t* size);

// Makes one group for each color, with its ranks in order of `key`, and equal keys in order of
// rank. A rank with a negative color is in no group and gets NULL.
// Collective: all ranks of `comm`, those without a group included.
LOCKSTEP_C_EXPORT lockstep_status lockstep_comm_split(lockstep_comm* comm, int32_t color,
                                                      int32_t key, lockstep_comm** group);
// Makes a second group of the same ranks, for a library whose calls must not interleave with its
// caller's.
// Collective: all ranks.
LOCKSTEP_C_EXPORT lockstep_status lockstep_comm_duplicate(lockstep_comm* comm,
                                                          lockstep_comm** copy);
// Breaks the communicator on all ranks: their waits return PEER_LOST with `reason`.
// Thread-safety: any thread, at any time before the communicator is freed.
LOCKSTEP_C_EXPORT lockstep_status lockstep_comm_abort(lockstep_comm* comm, const char* reason);

// Reductions. AVG divides the sum by the number of ranks, and takes floating point only; the
// bitwise ones take integers and bool only.
enum {
  LOCKSTEP_SUM = 0,
  LOCKSTEP_AVG = 1,
  LOCKSTEP_PRODUCT = 2,
  LOCKSTEP_MIN = 3,
  LOCKSTEP_MAX = 4,
  LOCKSTEP_BIT_AND = 5,
  LOCKSTEP_BIT_OR = 6,
  LOCKSTEP_BIT_XOR = 7
};

// Returns once all ranks have called it. Collective: all ranks.
LOCKSTEP_C_EXPORT lockstep_status lockstep_barrier(lockstep_comm* comm);

// Reduces the ranks' arrays element by element, in place, on every rank. Collective: all ranks.
LOCKSTEP_C_EXPORT lockstep_status lockstep_all_reduce(lockstep_comm* comm,
                                                      const lockstep_array* array,
                                                      int32_t reduction);

// Copies the root's array into every rank's. Collective: all ranks.
LOCKSTEP_C_EXPORT lockstep_status lockstep_broadcast(lockstep_comm* comm,
                                                     const lockstep_array* array, int32_t root);

// Reduces the ranks' arrays into the root's; the others' stay as they are. Collective: all ranks.
LOCKSTEP_C_EXPORT lockstep_status lockstep_reduce(lockstep_comm* comm, const lockstep_array* array,
                                                  int32_t root, int32_t reduction);

// Puts the ranks' `input` [k, ...], in rank order, into `output` [size * k, ...]: on the root, or
// on every rank. Other ranks than the root may give NULL as the output of gather.
// Collective: all ranks.
LOCKSTEP_C_EXPORT lockstep_status lockstep_gather(lockstep_comm* comm, const lockstep_array* output,
                                                  const lockstep_array* input, int32_t root);
LOCKSTEP_C_EXPORT lockstep_status lockstep_all_gather(lockstep_comm* comm,
                                                      const lockstep_array* output,
                                                      const lockstep_array* input);

// Puts part r of the root's `input` [size * k, ...] into rank r's `output` [k, ...]. Other ranks
// than the root may give NULL as the input.
// Collective: all ranks.
LOCKSTEP_C_EXPORT lockstep_status lockstep_scatter(lockstep_comm* comm,
                                                   const lockstep_array* output,
                                                   const lockstep_array* input, int32_t root);

// Reduces the ranks' `input` [size * k, ...] and puts part r into rank r's `output` [k, ...].
// Collective: all ranks.
LOCKSTEP_C_EXPORT lockstep_status lockstep_reduce_scatter(lockstep_comm* comm,
                                                          const lockstep_array* output,
                                                          const lockstep_array* input,
                                                          int32_t reduction);

// Sends part r of `input` [size * k, ...] to rank r, and puts what comes, in rank order, into
// `output`, which has the same shape.
// Collective: all ranks.
LOCKSTEP_C_EXPORT lockstep_status lockstep_all_to_all(lockstep_comm* comm,
                                                      const lockstep_array* output,
                                                      const lockstep_array* input);

// Messages, matched by peer and tag (0 or more), in order among equal ones. Types and numbers of
// elements must agree. send returns when the array may be reused, perhaps before it is received.
LOCKSTEP_C_EXPORT lockstep_status lockstep_send(lockstep_comm* comm, const lockstep_array* array,
                                                int32_t destination, int32_t tag);
LOCKSTEP_C_EXPORT lockstep_status lockstep_recv(lockstep_comm* comm, const lockstep_array* array,
                                                int32_t source, int32_t tag);

// The same without waiting. The array's memory must stay, and must not be touched, until
// lockstep_work_wait() has returned or lockstep_work_test() has said 1. `*work` is the caller's, to
// be freed with lockstep_work_free(); NULL after an error. Pending operations progress inside later
// calls and waits.
LOCKSTEP_C_EXPORT lockstep_status lockstep_all_reduce_start(lockstep_comm* comm,
                                                            const lockstep_array* array,
                                                            int32_t reduction,
                                                            lockstep_work** work);
LOCKSTEP_C_EXPORT lockstep_status lockstep_broadcast_start(lockstep_comm* comm,
                                                           const lockstep_array* array,
                                                           int32_t root, lockstep_work** work);
LOCKSTEP_C_EXPORT lockstep_status lockstep_isend(lockstep_comm* comm, const lockstep_array* array,
                                                 int32_t destination, int32_t tag,
                                                 lockstep_work** work);
LOCKSTEP_C_EXPORT lockstep_status lockstep_irecv(lockstep_comm* comm, const lockstep_array* array,
                                                 int32_t source, int32_t tag, lockstep_work** work);

// Waits until the operation is complete. Errors: those of the operation.
LOCKSTEP_C_EXPORT lockstep_status lockstep_work_wait(lockstep_work* work);
// Puts 1 into `*complete` if the operation is complete, 0 otherwise. Never waits.
LOCKSTEP_C_EXPORT lockstep_status lockstep_work_test(lockstep_work* work, int32_t* complete);
// Frees the handle. An operation that is not complete goes on: its array's memory must then stay
// until the communicator is freed. NULL does nothing.
LOCKSTEP_C_EXPORT lockstep_status lockstep_work_free(lockstep_work* work);

// The parameters or the gradients of an application that keeps them itself: `count` arrays, of any
// shapes and types, in the same order on all ranks. Small ones travel together.
//
// broadcast_arrays first compares the lists of all ranks (`names` may be NULL, or has `count`
// texts), and then copies the root's values into every rank's.
// average_arrays replaces each by its average over the ranks; floating point only.
// Collective: all ranks.
// Errors: MISMATCH that names the first array that differs.
LOCKSTEP_C_EXPORT lockstep_status lockstep_broadcast_arrays(lockstep_comm* comm,
                                                            const lockstep_array* arrays,
                                                            int32_t count, const char* const* names,
                                                            int32_t root);
LOCKSTEP_C_EXPORT lockstep_status lockstep_average_arrays(lockstep_comm* comm,
                                                          const lockstep_array* arrays,
                                                          int32_t count);

// Connects to the store by which the job's ranks find each other: keys and values for the job's own
// use. Keys are texts of 1 to 4,096 bytes, values are bytes. Under lockstep run and Open MPI any
// rank calls it at any time; under torchrun and other mpiruns all ranks call it together, once, and
// rank 0 serves the store as long as it keeps the handle. A process alone gets a store of its own.
// Errors: STORE_ERROR, TIMEOUT; INVALID_ARGUMENT under srun, where there is none.
LOCKSTEP_C_EXPORT lockstep_status lockstep_store_open(double timeout_seconds,
                                                      lockstep_store** store);
// Closes the connection. NULL does nothing.
LOCKSTEP_C_EXPORT lockstep_status lockstep_store_free(lockstep_store* store);
// Sets the key to the `size` bytes of `value`, replacing an earlier value.
LOCKSTEP_C_EXPORT lockstep_status lockstep_store_set(lockstep_store* store, const char* key,
                                                     const void* value, size_t size);
// Waits until the key exists and copies its value. `*size` is the value's size; if `capacity` is
// less, nothing is copied and the status is INVALID_ARGUMENT.
LOCKSTEP_C_EXPORT lockstep_status lockstep_store_get(lockstep_store* store, const char* key,
                                                     double timeout_seconds, void* value,
                                                     size_t capacity, size_t* size);
// Adds `delta` to the decimal integer at `key` (0 if absent). `*sum` is the result. Atomic.
LOCKSTEP_C_EXPORT lockstep_status lockstep_store_add(lockstep_store* store, const char* key,
                                                     int64_t delta, int64_t* sum);
// Waits until the key exists.
LOCKSTEP_C_EXPORT lockstep_status lockstep_store_wait(lockstep_store* store, const char* key,
                                                      double timeout_seconds);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // LOCKSTEP_C_COMMUNICATOR_H
