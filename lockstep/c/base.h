// Status codes, errors, versions and arrays of Lockstep's C interface. Users include lockstep.h.
#ifndef LOCKSTEP_C_BASE_H
#define LOCKSTEP_C_BASE_H

#include <stddef.h>
#include <stdint.h>

// Marks what a shared library exports.
#define LOCKSTEP_C_EXPORT __attribute__((visibility("default")))

// The number of the binary interface. It rises when a program must be compiled anew: a function has
// gone, or takes other arguments. New functions, and new fields at the end of option structs, do
// not raise it. The default of every such later field is zero.
#define LOCKSTEP_C_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

// The status that a function returns. lockstep_last_error() has the text.
typedef enum lockstep_status {
  LOCKSTEP_OK = 0,
  // A caller's mistake, seen before anything was sent or changed.
  LOCKSTEP_INVALID_ARGUMENT = 1,
  // A wait passed its deadline. The text names the missing ranks.
  LOCKSTEP_TIMEOUT = 2,
  // A peer is gone: its process died, or it freed its communicator.
  LOCKSTEP_PEER_LOST = 3,
  // Ranks called different operations, or the same one with different arguments.
  LOCKSTEP_MISMATCH = 4,
  // The job's store cannot be reached, or refused the secret.
  LOCKSTEP_STORE_ERROR = 5,
  // An input file is missing, cut short, damaged or inconsistent.
  LOCKSTEP_DATA_ERROR = 6,
  // A checkpoint is missing, damaged, or does not fit the model.
  LOCKSTEP_CHECKPOINT_ERROR = 7,
  // A process could not be started.
  LOCKSTEP_LAUNCH_ERROR = 8,
  // A system call failed.
  LOCKSTEP_SYSTEM_ERROR = 9,
  LOCKSTEP_OUT_OF_MEMORY = 10,
  // libtorch refused an operation, for example a model's forward for the shapes it got.
  LOCKSTEP_TORCH_ERROR = 11,
  // The caller's own function returned an error.
  LOCKSTEP_CALLBACK_ERROR = 12,
  // A fault of Lockstep. Please report it.
  LOCKSTEP_INTERNAL_ERROR = 13
} lockstep_status;

// The name of its constant; "unknown status" for another number. Never NULL.
// Thread-safety: any thread.
LOCKSTEP_C_EXPORT const char* lockstep_status_name(lockstep_status status);

// The text of the calling thread's last error, in one line or more; "" if its last call succeeded.
// It is valid until that thread's next call of a function that returns a lockstep_status.
// Thread-safety: any thread; each has its own text.
LOCKSTEP_C_EXPORT const char* lockstep_last_error(void);

// "0.1.0", and the LOCKSTEP_C_ABI of the library that the program runs with. A program whose own
// LOCKSTEP_C_ABI is another number must not go on.
// Thread-safety: any thread.
LOCKSTEP_C_EXPORT const char* lockstep_version(void);
LOCKSTEP_C_EXPORT int32_t lockstep_abi_version(void);

// Names the caller's line in the errors of this thread's next call, as C++ callers' lines are named
// by themselves. `file` must stay valid as long as the communicator. sites.h does it for every
// call.
LOCKSTEP_C_EXPORT void lockstep_site(const char* file, uint32_t line);

// Types of elements. 0 is none, so that a forgotten field is found.
enum {
  LOCKSTEP_FLOAT32 = 1,
  LOCKSTEP_FLOAT64 = 2,
  LOCKSTEP_FLOAT16 = 3,
  LOCKSTEP_BFLOAT16 = 4,
  LOCKSTEP_INT8 = 5,
  LOCKSTEP_INT16 = 6,
  LOCKSTEP_INT32 = 7,
  LOCKSTEP_INT64 = 8,
  LOCKSTEP_UINT8 = 9,
  LOCKSTEP_BOOL = 10
};

// Types of devices.
enum { LOCKSTEP_CPU = 0, LOCKSTEP_CUDA = 1 };

// The most dimensions of an array.
#define LOCKSTEP_MAX_DIMS 16

typedef struct lockstep_array lockstep_array;  // a view of memory
// A view of memory that the caller owns: functions neither keep the struct nor free what it points
// to. A function reads or writes `data` until it returns; a non-blocking one until its work is
// complete.
//
// CUDA arrays have no stream of their own: Lockstep works in the order of the device's default
// stream. What the program's other streams, or a DLPack tensor's producer, write to the memory is
// complete before the call, and later work on other streams, or of the host, waits for the default
// stream (cudaStreamSynchronize(0)) first. A CUDA array is INVALID_ARGUMENT in a process that sees
// no such device.
//
//   double a[3][4];
//   lockstep_array view = {.data = a, .shape = (int64_t[]){3, 4}, .ndim = 2,
//                          .dtype = LOCKSTEP_FLOAT64};
struct lockstep_array {
  void* data;            // may be NULL where the shape has no element
  const int64_t* shape;  // `ndim` sizes, each 0 or more; NULL if ndim is 0
  // `ndim` strides in elements, 0 or more; NULL: row-major, the last dimension is contiguous.
  // A Fortran array a(nx, ny) of column-major order is the shape (nx, ny) with strides (1, nx), or
  // the shape (ny, nx) with NULL. Memory that is written must not overlap itself.
  const int64_t* strides;
  int32_t ndim;          // 0 (one element) to LOCKSTEP_MAX_DIMS
  int32_t dtype;         // LOCKSTEP_FLOAT32, ...
  int32_t device_type;   // LOCKSTEP_CPU or LOCKSTEP_CUDA
  int32_t device_index;  // of the CUDA device; 0 otherwise
};

// DLPack, the exchange format of array libraries. Include your dlpack.h before or after; this
// header needs only the names.
struct DLManagedTensor;
struct DLManagedTensorVersioned;

// Fills `out` with a view of a DLPack tensor. The tensor stays the caller's, who calls its deleter
// once the view is not used any more; `out` points into it. The versioned form is DLPack 1.x.
// Thread-safety: any thread.
// Errors: INVALID_ARGUMENT for a device other than the CPU, memory of the CPU that CUDA has pinned,
// or CUDA (ROCm, oneAPI, CUDA's managed memory and others are named), for a CUDA device that this
// process does not see, a type that lockstep_array lacks, vectors of elements, and another major
// version.
LOCKSTEP_C_EXPORT lockstep_status lockstep_array_from_dlpack(const struct DLManagedTensor* tensor,
                                                             lockstep_array* out);
LOCKSTEP_C_EXPORT lockstep_status lockstep_array_from_dlpack_versioned(
    const struct DLManagedTensorVersioned* tensor, lockstep_array* out);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // LOCKSTEP_C_BASE_H
